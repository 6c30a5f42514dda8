#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does what the README says on a Debian 12 that has nothing: makes a root with debootstrap, clones the
# last commit into it, runs the README's two commands there, and reports time and size.
#
#   sudo tests/bare/bare_machine.sh FOLDER [MIRROR]
#
# FOLDER gets the root; one that is there from an earlier run is removed first. Needs root, debootstrap
# and the network. `--first-only` before FOLDER leaves `./mill test` out.
set -euo pipefail

fail() {
  echo "bare_machine: $*" >&2
  exit 1
}

first_only=no
if [[ ${1:-} == --first-only ]]; then
  first_only=yes
  shift
fi
[[ $# -ge 1 ]] || fail "usage: bare_machine.sh [--first-only] FOLDER [MIRROR]"
[[ $EUID == 0 ]] || fail "needs root"
command -v debootstrap > /dev/null || fail "needs debootstrap"
root=$1
mirror=${2:-http://deb.debian.org/debian}
source=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)
[[ ! -e $root || -e $root/etc/debian_version ]] || fail "$root: is there, and no root of ours"
rm -rf --one-file-system "$root"

minutes() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }
size() { du -smx "$root" | cut -f 1; }

# Runs a command in the root, in namespaces of its own: what it starts ends with it.
inside() {
  unshare --mount --pid --fork --mount-proc="$root/proc" bash -c '
    mount --bind /sys "$1/sys" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    exec chroot "$1" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 \
      PATH=/usr/sbin:/usr/bin:/sbin:/bin http_proxy="$http_proxy" https_proxy="$https_proxy" \
      bash -c "$2"' _ "$root" "$1"
}
export http_proxy=${http_proxy:-} https_proxy=${https_proxy:-}

start=$SECONDS
debootstrap --variant=minbase --include=git,ca-certificates bookworm "$root" "$mirror" > "$root.log" 2>&1 ||
  fail "debootstrap failed; see $root.log"
# What the machine needs to reach the network: its package sources and certificates.
cp -r /etc/apt/. "$root/etc/apt/"
cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2> /dev/null || true
git clone -q "$source" "$root/root/tidemill"
report=("root: $(minutes $((SECONDS - start))), $(size) MiB, commit $(git -C "$source" rev-parse --short HEAD)")

commands=("./mill run configs/quickstart.yaml")
[[ $first_only == yes ]] || commands+=("./mill test")
for command in "${commands[@]}"; do
  start=$SECONDS
  result=passed
  inside "update-ca-certificates > /dev/null 2>&1; cd /root/tidemill && $command" || result=FAILED
  report+=("$command: $result in $(minutes $((SECONDS - start))), then $(size) MiB")
done
echo
printf '%s\n' "${report[@]}"
[[ ${report[*]} != *FAILED* ]]
