#!/usr/bin/env bash
# Images in a server of S3 (moto, from PyPI) and behind TLS: stored, fetched, read and mounted by the
# program, with wrong credentials, a push that is killed, and a server that goes away and comes back.
#
#     scripts/store.sh PROGRAM [MEBIBYTES]      size of the files in the image, 200 if not told
#
# Needs root, and the network once for the server.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "$1")
size=${2:-200}
python=$(scripts/python.sh object-stores)

work=$(mktemp -d)
server=0 web=0
stop() { [ "$1" = 0 ] || { kill "$1" 2>/dev/null && wait "$1" 2>/dev/null; } || true; }
cleanup() {
    if mountpoint -q "$work/mnt"; then umount "$work/mnt" || true; fi
    stop "$server"
    stop "$web"
    rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/mnt" "$work/tree"

extant() { "$program" --quiet "$@"; }
say() { echo "store: $*"; }
fail() {
    echo "store: $*" >&2
    exit 1
}
field() { "$python" -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
seconds() { # command
    local begin=$EPOCHREALTIME
    "$@"
    "$python" -c "print('%.2f s' % ($EPOCHREALTIME - $begin))"
}

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_ALLOW_HTTP=true AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
export AWS_ACCESS_KEY_ID=first AWS_SECRET_ACCESS_KEY=secret-of-the-test AWS_EC2_METADATA_DISABLED=true
at=s3://bucket/dir/image

# Starts the server. It keeps objects in its memory.
serve() {
    "$python" -m moto.server -H 127.0.0.1 -p "$port" >"$work/server.log" 2>&1 &
    server=$!
    local i
    for ((i = 0; i < 300; i++)); do
        if "$python" - "$port" 2>/dev/null <<'END'; then return; fi
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1).close()
END
        sleep 0.1
    done
    cat "$work/server.log" >&2
    fail "the server does not start"
}

# Runs lines of Python with a client of S3.
s3() { "$python" -c "import boto3; s3 = boto3.client('s3'); $1"; }

serve
s3 "s3.create_bucket(Bucket='bucket')"

cp -r docs "$work/tree/docs"
head -c "$((size << 20))" /dev/urandom >"$work/tree/large"
extant build "$work/image" "$work/tree" --free 64M
digest=$(extant hash "$work/image")

say "push of $size MiB: $(seconds extant push "$work/image" "$at")"
! extant push "$work/image" "$at" 2>"$work/errors" || fail "an image was replaced without --force"
grep -q -- '--force replaces it' "$work/errors" || fail "no remedy: $(cat "$work/errors")"
again=$("$program" --json push "$work/image" s3://bucket/dir/second)
[ "$(field sent_chunks <<<"$again")" = 0 ] || fail "equal chunks were sent again: $again"

say "pull: $(seconds extant pull "$at" "$work/copy")"
[ "$(extant hash "$work/copy")" = "$digest" ] || fail "another tree came back"
e2fsck -fn "$work/copy" >"$work/fsck" 2>&1 || fail "$(cat "$work/fsck")"
[ "$(extant hash "$at")" = "$digest" ] || fail "another tree was read"
extant check "$at"
pin=$(field manifest <<<"$again")
extant pull -f "s3://bucket/dir/second@$pin" "$work/copy"

say "mount, and all of it read: $(seconds extant mount "$at" "$work/mnt"), $(seconds cmp "$work/mnt/large" "$work/tree/large")"
! touch "$work/mnt/new" 2>/dev/null || fail "a store was written"
extant umount "$work/mnt"
extant overlay create "$work/overlay" --backing "$at"
extant mount --format qcow2 --backing "$at" "$work/overlay" "$work/mnt"
echo changed >"$work/mnt/docs/cli.md"
extant umount "$work/mnt"
extant check --format qcow2 --backing "$at" "$work/overlay"
[ "$(extant cat --format qcow2 --backing "$at" "$work/overlay" /docs/cli.md)" = changed ] || fail "a change is lost"

# A push that is killed goes on.
head -c 8M /dev/urandom >"$work/tree/large"
extant build -F "$work/image" "$work/tree" --free 64M
"$program" --quiet push --chunk 16 "$work/image" s3://bucket/other/image &
push=$!
while [ "$(s3 "print(s3.list_objects_v2(Bucket='bucket', Prefix='other/').get('KeyCount', 0))")" -lt 20 ]; do sleep 0.1; done
kill -9 $push
wait $push 2>/dev/null || true
! extant info s3://bucket/other/image 2>/dev/null || fail "half an image appeared"
rest=$("$program" --json push --chunk 16 "$work/image" s3://bucket/other/image)
[ "$(field sent_chunks <<<"$rest")" -lt "$(field chunks <<<"$rest")" ] || fail "it began again: $rest"
[ "$(extant hash s3://bucket/other/image)" = "$(extant hash "$work/image")" ] || fail "another tree was stored"

# A wrong chunk is an error that names it.
s3 "keys = [o['Key'] for o in s3.list_objects_v2(Bucket='bucket', Prefix='other/chunks/')['Contents']]
for key in keys: s3.put_object(Bucket='bucket', Key=key, Body=b'damaged')"
! extant hash s3://bucket/other/image 2>"$work/errors" || fail "damaged chunks were read"
grep -q 'chunk s3://bucket/other/chunks/' "$work/errors" || fail "no chunk is named: $(cat "$work/errors")"

# A server that goes away: errors, and nothing is wrong afterwards.
"$program" --quiet mount "$at?timeout=3" "$work/mnt"
head -c 4096 "$work/mnt/docs/cli.md" >/dev/null
kill -STOP "$server"
! cat "$work/mnt/large" >/dev/null 2>&1 || fail "a store that does not answer was read"
kill -CONT "$server"
cat "$work/mnt/large" >/dev/null || fail "a mount did not outlast its store"
extant umount "$work/mnt"

# Signatures are verified from here on, and wrong ones are refused without the secret.
stop "$server"
INITIAL_NO_AUTH_ACTION_COUNT=5 serve
keys=$("$python" - <<'END'
import boto3, json, os
boto3.client("s3").create_bucket(Bucket="bucket")
iam = boto3.client("iam", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
iam.create_user(UserName="u")
rule = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(rule))
key = iam.create_access_key(UserName="u")["AccessKey"]
boto3.client("s3").list_buckets()
print(key["AccessKeyId"], key["SecretAccessKey"])
END
)
read -r id secret <<<"$keys"
AWS_ACCESS_KEY_ID=$id AWS_SECRET_ACCESS_KEY=$secret extant push "$work/image" "$at"
! AWS_ACCESS_KEY_ID=$id extant -v info "$at" 2>"$work/errors" || fail "a wrong secret was accepted"
grep -q 'check the credentials' "$work/errors" || fail "no remedy: $(cat "$work/errors")"
! grep -q "secret-of-the-test" "$work/errors" || fail "the secret is told"
AWS_ACCESS_KEY_ID=$id AWS_SECRET_ACCESS_KEY=$secret extant hash "$at" >/dev/null
say "signatures: accepted, and refused"

# TLS: a certificate that is trusted, and one that is not.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
    -keyout "$work/key" -out "$work/cert" 2>/dev/null
extant push "$work/image" "file://$work/web/image"
"$python" - "$work" <<'END' >"$work/web.log" 2>&1 &
import functools, http.server, ssl, sys
work = sys.argv[1]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=work + "/web")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(work + "/cert", work + "/key")
server.socket = context.wrap_socket(server.socket, server_side=True)
open(work + "/port.new", "w").write(str(server.server_port))
__import__("os").rename(work + "/port.new", work + "/port")
server.serve_forever()
END
web=$!
while [ ! -e "$work/port" ]; do sleep 0.1; done
secure=https://localhost:$(cat "$work/port")/image
[ "$(SSL_CERT_FILE=$work/cert extant hash "$secure")" = "$(extant hash "$work/image")" ] || fail "TLS read another tree"
! extant info "$secure?timeout=2" 2>"$work/errors" || fail "a certificate without trust was accepted"
grep -qi 'certificate' "$work/errors" || fail "no cause: $(cat "$work/errors")"
say "TLS: trusted, and refused"
say "passed"
