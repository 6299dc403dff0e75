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
    all_executable "$home" "$@" || build_aside "$key" "$version" "$build" "$@"
    for program in "$@"; do
      mkdir -p "$(dirname "$CACHE/bin/$program")"
      ln -srfn "$home/$program" "$CACHE/bin/$program"
    done
  ) 9>"$CACHE/lock/$key"
}

# build_aside KEY VERSION BUILD PROGRAM...: builds for `provide`, which holds the lock.
build_aside() {
  local key=$1 version=$2 build=$3 work
  shift 3
  say "${key%-"$version"} ($version): not in $CACHE yet; getting it"
  rm -rf "$CACHE/tmp/$key".* # of a run that was killed
  work=$(mktemp -d "$CACHE/tmp/$key.XXXXXX")
  # shellcheck disable=SC2064 # it is gone when this function has ended
  trap "rm -rf '$work'" EXIT
  mkdir "$work/out"
  "$build" "$work/out" "$work"
  all_executable "$work/out" "$@" || die "$key: the build left no $* (a bug in scripts/deps)"
  rm -rf "$CACHE/pkg/$key"
  mv "$work/out" "$CACHE/pkg/$key"
}

# all_executable DIRECTORY PROGRAM...
all_executable() {
  local directory=$1 program
  shift
  for program in "$@"; do
    [[ -x $directory/$program ]] || return 1
  done
}

# --- Other architectures --------------------------------------------------------------------

# Musl where rustup has it for all the world; else glibc, whose static programs ask it for names alike.
rust_target() {
  case $1 in
    amd64) echo x86_64-unknown-linux-musl ;;
    arm64) echo aarch64-unknown-linux-musl ;;
    arm) echo armv7-unknown-linux-gnueabihf ;;
    ppc64le) echo powerpc64le-unknown-linux-gnu ;;
    s390x) echo s390x-unknown-linux-gnu ;;
    riscv64) echo riscv64gc-unknown-linux-gnu ;;
    *) die "no such architecture: $1; there are amd64, arm64, arm, ppc64le, s390x, riscv64" ;;
  esac
}

# Tells cargo which commit the programs are of.
set_commit() {
  export FLANNEL_COMMIT
  FLANNEL_COMMIT=${FLANNEL_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
}

# cross_environment TARGET: from now on cargo builds static programs for it.
cross_environment() {
  local target=$1 variable flags='-C target-feature=+crt-static' compiler=${CC:-cc}
  rustc --print target-libdir --target "$target" | xargs test -d || rustup target add "$target" >&2
  variable=$(tr a-z- A-Z_ <<<"$target")
  [[ $target == "$(uname -m)"-* ]] || compiler=$(cross_compiler "$target")
  case $target in
    # Rust brings what a program for musl is linked with, and its linker is several times as fast as GNU ld.
    *-musl*)
      export "CARGO_TARGET_${variable}_LINKER=rust-lld"
      flags+=' -C link-self-contained=yes -C linker-flavor=ld.lld'
      ;;
    # Large static programs that GNU ld makes for it (22 MB of code) end before they begin.
    armv7*)
      export "CARGO_TARGET_${variable}_LINKER=$compiler"
      flags+=" -C link-arg=-fuse-ld=lld -C link-arg=-B$(rust_programs)/gcc-ld"
      ;;
    *) export "CARGO_TARGET_${variable}_LINKER=$compiler" ;;
  esac
  # The C in crates asks nothing of a C library.
  export "CC_${target//-/_}=$compiler" "CARGO_TARGET_${variable}_RUSTFLAGS=$flags"
}

# Where Rust keeps its own linker.
rust_programs() {
  printf '%s/lib/rustlib/%s/bin\n' "$(rustc --print sysroot)" "$(rustc -vV | sed -n 's/^host: //p')"
}

# cross_compiler TARGET: Debian's for that target, with its C library.
cross_compiler() {
  local triple library
  case $1 in
    x86_64*) triple=x86_64-linux-gnu library=amd64 ;;
    aarch64*) triple=aarch64-linux-gnu library=arm64 ;;
    armv7*) triple=arm-linux-gnueabihf library=armhf ;;
    powerpc64le*) triple=powerpc64le-linux-gnu library=ppc64el ;;
    s390x*) triple=s390x-linux-gnu library=s390x ;;
    riscv64*) triple=riscv64-linux-gnu library=riscv64 ;;
    *) die "no cross compiler is known for $1" ;;
  esac
  have "$triple-gcc" || install_packages "gcc-${triple/x86_64/x86-64}" "libc6-dev-$library-cross"
  printf '%s\n' "$triple-gcc"
}

# need_qemu ARCHITECTURE: prints the program that runs programs of that architecture here.
need_qemu() {
  local program=$1
  case $1 in
    amd64) program=x86_64 ;;
    arm64) program=aarch64 ;;
  esac
  have "qemu-$program-static" || install_packages qemu-user-static
  printf 'qemu-%s-static\n' "$program"
}

# built_for_the_image PROFILE [ARCHITECTURE]: where the programs are that an image has been made of.
built_for_the_image() {
  local target directory=$1
  target=$(rust_target "${2:-$(go_architecture "$(uname -m)")}")
  [[ $directory != dev ]] || directory=debug
  printf '%s\n' "$CARGO_TARGET_DIR/$target/$directory"
}

# build_lab PROFILE: flannel-lab, from the crates that the image of this machine has been built from.
build_lab() {
  local target
  target=$(rust_target "$(go_architecture "$(uname -m)")")
  cross_environment "$target"
  cargo build --locked --profile "$1" --target "$target" -p flannel-lab
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
  oci_image "$root" "$work" "$architecture" "$config"
  oci_finish "$work" "$archive" "$name"
}

# oci_image ROOT WORK ARCHITECTURE CONFIG [gzip]: adds the image to those of WORK, compressed if asked to.
oci_image() {
  local root=$1 work=$2 architecture=$3 config=$4 compression=${5-} tree layer content manifest variant=
  [[ $architecture != arm ]] || variant='"variant":"v7",'
  tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$work/tree" .
  tree=$(sha256sum "$work/tree" | cut -d ' ' -f 1)
  [[ -z $compression ]] || "$compression" --no-name <"$work/tree" >"$work/layer"
  [[ -n $compression ]] || mv "$work/tree" "$work/layer"
  layer=$(oci_blob "$work" "$work/layer")
  printf '{"architecture":"%s",%s"os":"linux","config":{%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$architecture" "$variant" "$config" "$tree" >"$work/config"
  content=$(oci_blob "$work" "$work/config")
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
    "$(oci_descriptor image.config.v1+json "$content")" \
    "$(oci_descriptor "image.layer.v1.tar${compression:++gzip}" "$layer")" >"$work/manifest"
  manifest=$(oci_blob "$work" "$work/manifest")
  printf '"Config":"blobs/sha256/%s","Layers":["blobs/sha256/%s"]' \
    "${content% *}" "${layer% *}" >"$work/docker"
  printf '%s "platform":{"architecture":"%s",%s"os":"linux"}\n' \
    "$manifest" "$architecture" "$variant" >>"$work/manifests"
}

# oci_finish WORK ARCHIVE NAME: the archive of all images of WORK, under one name. Those of several architectures
# are an image of its own kind, an index: a tool that is asked for that name finds one image, whichever it then takes
# of it.
oci_finish() {
  local work=$1 archive=$2 name=$3 files=(blobs index.json oci-layout) digest size platform kind entries=() image
  while read -r digest size platform; do
    entries+=("$(oci_descriptor image.manifest.v1+json "$digest $size" ",$platform")")
  done <"$work/manifests"
  if ((${#entries[@]} > 1)); then
    kind=image.index.v1+json
    oci_index "${entries[@]}" >"$work/index"
    image=$(oci_blob "$work" "$work/index")
    platform=
  else
    read -r digest size platform <"$work/manifests"
    kind=image.manifest.v1+json image="$digest $size" platform=",$platform"
    # For docker and podman of old, whose format has no word for several architectures.
    printf '[{"RepoTags":["%s"],%s}]' "$name" "$(<"$work/docker")" >"$work/manifest.json"
    files+=(manifest.json)
  fi
  oci_index "$(oci_descriptor "$kind" "$image" "$platform,\"annotations\":{\"io.containerd.image.name\":\"$(full_image_name "$name")\",\"org.opencontainers.image.ref.name\":\"${name##*:}\"}")" \
    >"$work/index.json"
  printf '{"imageLayoutVersion":"1.0.0"}' >"$work/oci-layout"
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$archive" "${files[@]}"
}

# oci_index DESCRIPTOR...
oci_index() {
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' \
    "$(printf '%s\n' "$@" | paste -sd,)"
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
