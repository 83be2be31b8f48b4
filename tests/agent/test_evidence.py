"""What the kernel says about memory, in both versions of its files, as recorded."""

from __future__ import annotations

from holdfast.agent import evidence

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 12\nmax 841\noom 2\noom_kill 1\noom_group_kill 0\n"
KMSG = (
    "6,1204,98123456,-;python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    "3,1231,98123999,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:10485760kB, "
    "anon-rss:8388608kB, file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:16480kB oom_score_adj:0\n"
)


def test_both_counters_are_read():
    assert evidence.oom_kills(V1) == 3
    assert evidence.oom_kills(V2) == 1
    assert evidence.oom_kills("low 0\nhigh 0\n") is None


def test_the_files_of_both_versions_are_found():
    v1 = "9:name=systemd:/\n4:memory:/jobs/one\n1:cpu:/\n0::/\n"
    assert evidence.memory_files(v1)["v1"] == "/sys/fs/cgroup/memory/jobs/one/memory.oom_control"
    v2 = "0::/user.slice/session.scope\n"
    assert evidence.memory_files(v2) == {"v2": "/sys/fs/cgroup/user.slice/session.scope/memory.events"}


def test_the_kernels_own_words_name_the_process():
    line = evidence.kernel_oom_line(KMSG, 4711)
    assert line is not None
    assert line.startswith("Memory cgroup out of memory: Killed process 4711")
    assert evidence.kernel_oom_line(KMSG, 4712) is None


def test_only_new_kills_are_evidence(tmp_path):
    counter = tmp_path / "memory.events"
    counter.write_text(V2)
    watch = evidence.OomWatch({"v2": str(counter)})
    assert watch.since_last() == ()
    counter.write_text(V2.replace("oom_kill 1", "oom_kill 2"))
    assert watch.since_last() == ("out of memory: the cgroup (v2) counts 1 more oom_kill",)
    assert watch.since_last() == ()
