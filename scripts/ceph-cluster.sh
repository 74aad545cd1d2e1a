# A Ceph cluster of one node in the directory $work: a monitor, a manager and three OSDs on files, all
# on 127.0.0.1, with keys. Sourced by ceph.sh, which sets $work, `say` and `fail`.
# shellcheck shell=bash

# Daemons that run, by their names.
declare -A daemons=()
export CEPH_CONF=$work/ceph.conf

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Runs a daemon in the background.
begin_daemon() { # name, command
    local name=$1
    shift
    "$@" >>"$work/$name.out" 2>&1 &
    daemons[$name]=$!
    # Bash prints no message when it is killed.
    disown
}

# Kills a process, of whose state nothing is left in memory then.
end_process() { # pid
    kill -KILL "$1" 2>/dev/null || true
    while [ -e "/proc/$1" ]; do sleep 0.05; done
}
kill_daemon() { # name
    end_process "${daemons[$1]}"
    unset "daemons[$1]"
}

# Waits until a command succeeds. A daemon that has ended, and five minutes, are failures.
until_true() { # reason for waiting, command
    local what=$1 name
    local -i i
    shift
    for ((i = 0; i < 600; i++)); do
        if "$@" >"$work/waiting" 2>&1; then return; fi
        for name in "${!daemons[@]}"; do
            [ -e "/proc/${daemons[$name]}" ] && continue
            tail -n 20 "$work/$name.out" "$work/$name.log" >&2 || true
            fail "$name has ended while $what"
        done
        sleep 0.5
    done
    cat "$work/waiting" >&2
    fail "waited five minutes: $what"
}

# The memory of an OSD is 300 to 500 MB with these bounds, and the disk's is what images take.
write_conf() {
    cat >"$CEPH_CONF" <<END
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = v2:127.0.0.1:$(free_port)/0
public_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = $work/\$name.keyring
run_dir = $work
osd_pool_default_size = 3
osd_pool_default_min_size = 2
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_max_pg_per_osd = 1000
[mon]
mon_data = $work/\$name.data
mon_data_avail_warn = 2
mon_data_avail_crit = 1
mon_osd_reporter_subtree_level = osd
[mgr]
mgr_data = $work/\$name.data
mgr_initial_modules =
[osd]
osd_data = $work/\$name.data
osd_objectstore = bluestore
bluestore_block_size = 8589934592
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
osd_memory_target = 939524096
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_recovery_sleep = 0
[client]
rgw_data = $work/\$name.data
[mon.a]
log_file = $work/mon.a.log
admin_socket = $work/mon.a.asok
[mgr.a]
log_file = $work/mgr.a.log
admin_socket = $work/mgr.a.asok
END
    local -i id
    for ((id = 0; id < 3; id++)); do
        printf '[osd.%d]\nlog_file = %s\nadmin_socket = %s\n' $id "$work/osd.$id.log" "$work/osd.$id.asok"
    done >>"$CEPH_CONF"
}

begin_monitor() {
    ceph-authtool --create-keyring "$work/client.admin.keyring" --gen-key -n client.admin \
        --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    ceph-authtool --create-keyring "$work/mon.a.keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
    ceph-authtool "$work/mon.a.keyring" --import-keyring "$work/client.admin.keyring" >/dev/null
    local at fsid
    at=$(sed -n 's/^mon_host = //p' "$CEPH_CONF")
    fsid=$(sed -n 's/^fsid = //p' "$CEPH_CONF")
    monmaptool --create --fsid "$fsid" --addv a "[$at]" "$work/monmap" >/dev/null
    mkdir "$work/mon.a.data" "$work/mgr.a.data"
    ceph-mon --mkfs -i a --monmap "$work/monmap" --keyring "$work/mon.a.keyring"
    begin_daemon mon.a ceph-mon -i a -f
    until_true "the monitor starts" ceph --connect-timeout 5 mon stat
    ceph auth get-or-create mgr.a mon 'allow profile mgr' osd 'allow *' >"$work/mgr.a.keyring"
    ceph config set --force mgr mgr/devicehealth/enable_monitoring false
    begin_daemon mgr.a ceph-mgr -i a -f
}

begin_osd() { # id
    begin_daemon "osd.$1" ceph-osd -i "$1" -f
}

make_osd() { # id
    local uuid secret
    uuid=$(cat /proc/sys/kernel/random/uuid)
    secret=$(ceph-authtool --gen-print-key)
    echo "{\"cephx_secret\": \"$secret\"}" | ceph osd new "$uuid" "$1" -i - >/dev/null
    ceph-authtool --create-keyring "$work/osd.$1.keyring" --name "osd.$1" --add-key "$secret" >/dev/null
    mkdir "$work/osd.$1.data"
    ceph-osd -i "$1" --mkfs --osd-uuid "$uuid" >"$work/osd.$1.out" 2>&1 || {
        cat "$work/osd.$1.out" >&2
        fail "OSD $1 is not made"
    }
    begin_osd "$1"
}

# Succeeds if this number of OSDs is up.
up() { # number
    ceph osd stat | grep -q " $1 up"
}

# Succeeds if all groups of placement have all of their copies.
clean() {
    ceph pg stat --format json | python3 -c '
import json, sys
stat = json.load(sys.stdin)
stat = stat.get("pg_summary", stat)
states = {state["name"]: state["num"] for state in stat["num_pg_by_state"]}
sys.exit(not states or set(states) != {"active+clean"})'
}

begin_cluster() {
    write_conf
    begin_monitor
    local -i id
    for ((id = 0; id < 3; id++)); do make_osd $id; done
    until_true "three OSDs start" up 3
    ceph osd pool create rbd 8 >/dev/null 2>&1
    rbd pool init rbd
    until_true "the pool becomes clean" clean
    # What a host gets: images of the pool, and the right to fence others.
    ceph auth get-or-create client.extant mon 'profile rbd' osd 'profile rbd pool=rbd' \
        >"$work/client.extant.keyring"
}

end_cluster() {
    local name
    for name in "${!daemons[@]}"; do kill_daemon "$name"; done
}
