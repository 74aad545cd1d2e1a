# Makes archives `*.tar`, images of containers `*.oci` and `*.docker`, and manifests `list*` in the
# current directory, as seeds of fuzzing. The same ones each time.
mkdir -p t/a/d t/oci/blobs/sha256; cd t
echo content > a/f; ln a/f a/h; ln -s ../a/f a/l; mkfifo a/p; mknod a/c c 1 3 || :
setfattr -n user.a -v b a/f; setfacl -m u:7:rx a/d
printf x > "a/$(printf 'n%.0s' $(seq 120))"; : > a/.wh.gone; : > a/d/.wh..wh..opq
pack() { tar -b1 --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "$@" a; }
pack --format=gnu -cf ../gnu.tar; pack --format=v7 -cf ../v7.tar || :; pack --format=ustar -cf ../ustar.tar || :
pax="--format=pax --pax-option=delete=atime,delete=ctime,exthdr.name=x --xattrs --acls"
pack $pax -cf ../pax.tar
truncate -s 40K a/hole; printf x >> a/hole
for version in 0.0 0.1 1.0; do pack $pax -S --sparse-version=$version -cf ../sparse$version.tar; done
pack --format=gnu -S -cf ../oldsparse.tar
gzip -nk ../gnu.tar; zstd -q ../gnu.tar; xz -k ../gnu.tar; bzip2 -k ../gnu.tar
sum() { sha256sum "$1" | cut -d' ' -f1; }
size() { stat -c %s "$1"; }
put() { cp "$1" "oci/blobs/sha256/$(sum "$1")"; }
layer=$(sum ../gnu.tar.gz); diff=$(sum ../gnu.tar)
echo "{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$diff\"]}}" > config
echo "{\"schemaVersion\":2,\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"sha256:$(sum config)\",\"size\":$(size config)},\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"sha256:$layer\",\"size\":$(size ../gnu.tar.gz)}]}" > manifest
put config; put manifest; put ../gnu.tar.gz
echo '{"imageLayoutVersion":"1.0.0"}' > oci/oci-layout
echo "{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"sha256:$(sum manifest)\",\"size\":$(size manifest)}]}" > oci/index.json
tar -b1 --sort=name --mtime=@0 --owner=0 --group=0 --format=ustar -C oci -cf ../image.oci .
mkdir docker; cp ../gnu.tar docker/layer.tar; cp config docker/config.json
echo '[{"Config":"config.json","RepoTags":["a:b"],"Layers":["layer.tar"]}]' > docker/manifest.json
tar -b1 --sort=name --mtime=@0 --owner=0 --group=0 --format=ustar -C docker -cf ../image.docker .
bsdtar -cf ../list --format=mtree --options=mtree:all a
printf '#mtree\n/set type=file uid=1 nlink=2\n. type=dir\na type=dir mode=0755\nb size=0 inode=1 time=1.5\n..\n./c type=char device=native,1,3\n./d\\040 size=0 xattr.user.a=AA==\n./e type=link link=a\\\n optional\n/unset all\n' > ../list2
