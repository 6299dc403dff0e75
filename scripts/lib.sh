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

# --- Container images -----------------------------------------------------------------------

# go_architecture MACHINE: an architecture as images name it.
go_architecture() {
  case $1 in
    x86_64*) echo amd64 ;;
    aarch64*) echo arm64 ;;
    armv7*) echo arm ;;
    powerpc64le* | ppc64le*) echo ppc64le ;;
    s390x*) echo s390x ;;
    riscv64*) echo riscv64 ;;
    *) die "no image is made for $1" ;;
  esac
}

# oci_archive ROOT WORK ARCHIVE NAME ARCHITECTURE CONFIG: an image whose only layer is the tree ROOT, as an
# archive that ctr, podman and docker take. CONFIG is what of the image's config is said beside PATH,
# as JSON members. The same tree gives the same bytes.
oci_archive() {
  local root=$1 work=$2 archive=$3 name=$4 architecture=$5 config=$6
  mkdir -p "$work/blobs/sha256"
  oci_image "$root" "$work" "$name" "$architecture" "$config" >"$work/manifests"
  oci_finish "$work" "$archive"
}

# oci_image ROOT WORK NAME ARCHITECTURE CONFIG: adds the image to those of WORK and prints its entry for
# the index.
oci_image() {
  local root=$1 work=$2 name=$3 architecture=$4 config=$5 layer content manifest variant=
  [[ $architecture != arm ]] || variant='"variant":"v7",'
  tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$work/layer" .
  layer=$(oci_blob "$work" "$work/layer")
  printf '{"architecture":"%s",%s"os":"linux","config":{%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$architecture" "$variant" "$config" "${layer% *}" >"$work/config"
  content=$(oci_blob "$work" "$work/config")
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
    "$(oci_descriptor image.config.v1+json "$content")" \
    "$(oci_descriptor image.layer.v1.tar "$layer")" >"$work/manifest"
  manifest=$(oci_blob "$work" "$work/manifest")
  # For docker and podman of old.
  printf '[{"Config":"blobs/sha256/%s","RepoTags":["%s"],"Layers":["blobs/sha256/%s"]}]' \
    "${content% *}" "$name" "${layer% *}" >"$work/manifest.json"
  oci_descriptor image.manifest.v1+json "$manifest" \
    ',"platform":{"architecture":"'"$architecture"'",'"$variant"'"os":"linux"},"annotations":{"io.containerd.image.name":"'"$(full_image_name "$name")"'","org.opencontainers.image.ref.name":"'"${name##*:}"'"}'
}

# oci_finish WORK ARCHIVE: the index of all images whose entries are in WORK/manifests, and the archive.
oci_finish() {
  local work=$1 archive=$2 files=(blobs index.json oci-layout)
  printf '{"imageLayoutVersion":"1.0.0"}' >"$work/oci-layout"
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' \
    "$(paste -sd, "$work/manifests")" >"$work/index.json"
  # Images of several architectures have no common name in the older format.
  (($(wc -l <"$work/manifests") > 1)) || files+=(manifest.json)
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$archive" "${files[@]}"
}

# oci_blob WORK FILE: moves the file to where its content says, and prints its digest and size.
oci_blob() {
  local digest size
  digest=$(sha256sum "$2" | cut -d ' ' -f 1)
  size=$(stat --format=%s "$2")
  mv "$2" "$1/blobs/sha256/$digest"
  printf '%s %s\n' "$digest" "$size"
}

# oci_descriptor TYPE "DIGEST SIZE" [MORE]
oci_descriptor() {
  printf '{"mediaType":"application/vnd.oci.%s","digest":"sha256:%s","size":%s%s}\n' \
    "$1" "${2% *}" "${2#* }" "${3-}"
}

# As containerd keeps it.
full_image_name() {
  case $1 in
    *.*/*) printf '%s' "$1" ;;
    */*) printf 'docker.io/%s' "$1" ;;
    *) printf 'docker.io/library/%s' "$1" ;;
  esac
}
