# shellcheck shell=bash
# What the scripts share: where things live, how they speak, how they become root, and how
# something that takes minutes to build is built once and kept. Source it; do not run it.
shopt -s inherit_errexit

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Outside the clone, so that a fresh clone starts warm.
CACHE=${FLANNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flannel-rs}

# An ordinary user's PATH lacks the directories where Debian keeps ip, nft and iptables, and a
# non-login shell's PATH often lacks cargo.
PATH=$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin

# --- Speaking -------------------------------------------------------------------------------

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# narrated LABEL COMMAND...: runs a long, talkative command. Its output goes to a log file; the
# terminal gets a sign of life now and then, and the end of the log when the command fails.
narrated() {
  local label=$1 log=$CACHE/log/$1.log started=$SECONDS
  shift
  mkdir -p "$CACHE/log"
  if ! "$@" 2>&1 </dev/null | show_signs_of_life "$label" "$log"; then
    tail -n 30 "$log" >&2
    die "$label failed after $((SECONDS - started)) s; the whole log is $log"
  fi
  say "$label: done in $((SECONDS - started)) s"
}

show_signs_of_life() {
  local label=$1 log=$2 started=$SECONDS next=$((SECONDS + 15)) line='' latest='' status
  while :; do
    status=0
    IFS= read -r -t 5 line || status=$?
    if ((status == 0)); then
      latest=$line
      printf '%s\n' "$line"
    elif ((status <= 128)); then
      break # end of output; a status above 128 is read's timeout
    fi
    if ((SECONDS >= next)); then
      say "$label: $((SECONDS - started)) s ... ${latest:0:100}"
      next=$((SECONDS + 15))
    fi
  done >"$log"
}

# --- The machine ----------------------------------------------------------------------------

have() { command -v "$1" >/dev/null; }

# For what asks for root only after minutes of building: better to fail at once.
need_root() {
  if ((EUID == 0)); then return; fi
  have sudo || die "$* needs root: run this as root, or install sudo"
  sudo true
}

# as_root COMMAND...
as_root() {
  if ((EUID == 0)); then
    "$@"
  elif have sudo; then
    sudo "$@"
  else
    die "this needs root and there is no sudo; as root, run: $*"
  fi
}

# One source of packages that does not answer need not be the one that matters.
apt_update() {
  if [[ -n ${apt_updated-} ]]; then return; fi
  have apt-get || die "this is not a Debian or Ubuntu system: install by hand what is missing"
  (narrated apt-update as_root apt-get -o DPkg::Lock::Timeout=300 update) ||
    say "going on with the package lists at hand"
  apt_updated=yes
}

install_packages() {
  say "installing $*"
  apt_update
  narrated apt-install as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# need_command COMMAND PACKAGE
need_command() { have "$1" || install_packages "$2"; }

# A gcc without the C library's headers is a common half of one.
need_c_compiler() {
  if ! cc -x c -o /dev/null - <<<'#include <stdio.h>
      int main(void) { return puts("") < 0; }' 2>/dev/null; then
    install_packages gcc libc6-dev
  fi
}

# rust-toolchain.toml names one toolchain. Where it is missing and rustup cannot fetch it, the
# machine's own stable one is the next best: cargo itself refuses it when it is too old.
need_rust() {
  have cargo || die "Rust is missing: install it with rustup (https://rustup.rs)"
  if ! (cd "$ROOT" && cargo --version >/dev/null); then
    export RUSTUP_TOOLCHAIN=stable
    cargo --version >/dev/null || die "no working Rust toolchain: run: rustup toolchain install"
    say "using $(rustc --version) instead of the toolchain in rust-toolchain.toml"
  fi
  need_c_compiler
}

# --- The cache ------------------------------------------------------------------------------

# provide NAME VERSION BUILD PROGRAM...: makes sure that $CACHE/bin/PROGRAM exists. When it does
# not, `BUILD OUT WORK` must leave each program in the directory OUT; WORK is scratch space.
# Two runs may ask for the same thing at once: one builds, the other waits, and nobody ever sees
# a half-built one, because it is built aside and renamed.
provide() {
  local name=$1 version=$2 build=$3 program
  local key=$name-$version home=$CACHE/pkg/$name-$version
  shift 3
  mkdir -p "$CACHE"/{bin,pkg,lock,tmp}
  (
    flock -n 9 || {
      say "$name: another run is building it; waiting"
      flock 9
    }
    if all_executable "$home" "$@"; then exit; fi

    say "$name ($version): not in $CACHE yet; getting it"
    rm -rf "$CACHE/tmp/$key".* # of a run that was killed
    work=$(mktemp -d "$CACHE/tmp/$key.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/out"
    "$build" "$work/out" "$work"
    all_executable "$work/out" "$@" || die "$name: the build left no $* (a bug in scripts/deps)"
    rm -rf "$home"
    mv "$work/out" "$home"
  ) 9>"$CACHE/lock/$key"
  for program in "$@"; do
    mkdir -p "$(dirname "$CACHE/bin/$program")"
    ln -srfn "$home/$program" "$CACHE/bin/$program"
  done
}

# all_executable DIRECTORY PROGRAM...
all_executable() {
  local directory=$1 program
  shift
  for program in "$@"; do
    [[ -x $directory/$program ]] || return 1
  done
}
