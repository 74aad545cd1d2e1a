"""dist/extant-batch.yaml: a valid Job, whose command lines do their work.

The program is `EXTANT`, or that on the path. The pods run here as processes in a root directory
that has the mounts of the manifest, as its user; needs root.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import shutil
import subprocess
from typing import Any, Dict, List

import pytest
from conftest import mke2fs, run

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make fleet` installs it")
yaml = pytest.importorskip("yaml", reason="`make fleet` installs it")

TOP = pathlib.Path(__file__).parent.parent.parent.parent
#: The oldest version with all of its fields, and the newest that the validator knows.
VERSIONS = ["1.29", kubernetes_validate.latest_version()]


@pytest.fixture(scope="module")
def job() -> Dict[str, Any]:
    loaded: Dict[str, Any] = yaml.safe_load((TOP / "dist/extant-batch.yaml").read_text())
    return loaded


def pod(job: Dict[str, Any]) -> Dict[str, Any]:
    spec: Dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def container(job: Dict[str, Any]) -> Dict[str, Any]:
    (only,) = pod(job)["containers"]
    return dict(only)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_job_is_valid(job: Dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(job, version, strict=True)
    for damage in [
        lambda spec: spec.update(backOffLimitPerIndex=2),
        lambda spec: spec.update(completions="8"),
        lambda spec: spec["template"]["spec"].pop("containers"),
        lambda spec: spec["podFailurePolicy"]["rules"][1]["onExitCodes"].pop("operator"),
    ]:
        wrong = copy.deepcopy(job)
        damage(wrong["spec"])
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


def test_its_parts_fit_together(job: Dict[str, Any]) -> None:
    spec, only = job["spec"], container(job)
    assert f"--shard=$(JOB_COMPLETION_INDEX)/{spec['completions']}" in only["args"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] <= spec["completions"]
    entry = (TOP / "Containerfile").read_text().split("ENTRYPOINT ")[1]
    assert only["command"] == json.loads(entry)
    volumes = [volume["name"] for volume in pod(job)["volumes"]]
    assert volumes == [mount["name"] for mount in only["volumeMounts"]]
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[1]["onExitCodes"]["containerName"] == only["name"]
    # backoffLimitPerIndex and podFailurePolicy need it.
    assert pod(job)["restartPolicy"] == "Never"


def test_it_has_no_privileges(job: Dict[str, Any]) -> None:
    rights, user = container(job)["securityContext"], pod(job)["securityContext"]
    assert (rights["privileged"], rights["allowPrivilegeEscalation"]) == (False, False)
    assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}
    assert user["runAsNonRoot"] and user["runAsUser"] > 0
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod(job)["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod(job))
    assert {"requests", "limits"} == set(container(job)["resources"])


class Machine:
    """A root directory with the program and the mounts of the pod."""

    def __init__(self, job: Dict[str, Any], folder: pathlib.Path) -> None:
        program = os.environ.get("EXTANT") or shutil.which("extant")
        assert program, "EXTANT names no program: run `make fleet`, which builds it"
        self.job, self.root = job, folder / "root"
        user = pod(job)["securityContext"]["runAsUser"]
        script = [f"mount -t tmpfs -o mode=755 tmpfs {self.root}", f"cd {self.root}",
                  "mkdir -p usr/bin usr/lib usr/lib64 proc dev", "ln -s usr/lib usr/lib64 .",
                  "mount --bind /usr/lib usr/lib; mount --bind /usr/lib64 usr/lib64",
                  "mount --bind /proc proc; : > dev/null; mount --bind /dev/null dev/null",
                  f": > usr/bin/extant; mount --bind {program} usr/bin/extant"]
        self.volumes: Dict[str, pathlib.Path] = {}
        for mount in container(job)["volumeMounts"]:
            volume = self.volumes[mount["name"]] = folder / mount["name"]
            volume.mkdir()
            os.chown(volume, user, user)
            place = mount["mountPath"].lstrip("/")
            script += [f"mkdir {place}", f"mount --bind {volume} {place}"]
            if mount.get("readOnly"):
                script.append(f"mount -o remount,bind,ro {place}")
        script.append("mount -o remount,ro .")
        script.append(f'exec unshare --root=. --setgid={user} --setuid={user} "$@"')
        self.root.mkdir()
        self.script = "set -e\n" + "\n".join(script)

    def run(self, index: int) -> "subprocess.CompletedProcess[str]":
        """Runs the pod of an index."""
        only = container(self.job)
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in only["args"]]
        command = ["unshare", "--mount", "bash", "-c", self.script, "pod", *only["command"], *words]
        return subprocess.run(command, capture_output=True, text=True)

    def records(self) -> List[Dict[str, Any]]:
        logs = sorted(self.volumes["logs"].iterdir())
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def test_all_pods_together_run_each_command_once(
    job: Dict[str, Any], tmp_path: pathlib.Path
) -> None:
    machine, pods = Machine(job, tmp_path), job["spec"]["completions"]
    template, names = mke2fs(tmp_path / "template.img", "8M"), range(20)
    for name in names:
        shutil.copyfile(template, machine.volumes["images"] / f"{name}.img")
    damaged = machine.volumes["images"] / "13.img"
    run("debugfs", "-w", "-R", "set_inode_field <2> links_count 9", damaged)
    manifest = "".join(f"check /images/{name}.img\n" for name in names)
    (machine.volumes["manifest"] / "manifest").write_text(manifest)
    for index in range(pods):
        ended = machine.run(index)
        assert ended.returncode == (1 if index == 13 % pods else 0), ended
    records = machine.records()
    assert sorted(record["line"] for record in records) == [name + 1 for name in names]
    assert {record["exit_code"] for record in records if record["line"] != 14} == {0}
    # The next attempt of the index repeats the job that failed, and no other one.
    shutil.copyfile(template, damaged)
    ended = machine.run(13 % pods)
    assert ended.returncode == 0 and "2 done, 0 failed (1 before)" in ended.stderr, ended
    assert len(machine.records()) == len(records) + 1


def test_a_wrong_manifest_ends_all_pods(job: Dict[str, Any], tmp_path: pathlib.Path) -> None:
    machine = Machine(job, tmp_path)
    (machine.volumes["manifest"] / "manifest").write_text("chekc /images/1.img\n")
    rule = job["spec"]["podFailurePolicy"]["rules"][1]
    assert rule["action"] == "FailJob"
    assert machine.run(3).returncode in rule["onExitCodes"]["values"]
