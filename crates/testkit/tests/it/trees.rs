use extant_testkit::FeatureSet;
use extant_testkit::kernel::Mount;
use extant_testkit::tree::{Manifest, Plan, Shape};

#[test]
fn the_kernel_stores_a_random_tree_unchanged() {
    for seed in 0..3 {
        let plan = Plan::random(seed, &Shape::default());
        let image = FeatureSet::named("1k").make();
        let mount = Mount::new(image.path(), "");
        plan.apply(mount.path());
        mount.unmount();
        let mount = Mount::new(image.path(), "ro");
        let walked = Manifest::walk(mount.path()).without("lost+found").without_root();
        plan.manifest().assert_same(&walked);
        mount.unmount();
        image.assert_clean();
    }
}

#[test]
fn equal_seeds_give_equal_trees() {
    let plan = |seed| Plan::random(seed, &Shape::small()).manifest();
    assert_eq!(plan(5), plan(5));
    assert_ne!(plan(5), plan(6));
}
