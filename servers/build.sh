#!/usr/bin/env bash
# Builds the real servers that the tests run against, into a cache outside the checkout.
#
#   servers/build.sh            build what is missing (or what the arguments name)
#   servers/build.sh --list     print "name path" for what is there, build nothing
#
# A server is built once per version: the cache path carries the version, so a bump never reuses an
# old binary. A server that cannot be had here is reported and skipped: its tests skip with that reason
# and everything else still runs, so this script fails only on a usage error.
set -u

here=$(cd "$(dirname "$0")" && pwd)
cache=${LLOG_SERVERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leaderless-log/servers}

OXIA=0.14.0
VERSITYGW=1.8.0
MINIO=0.0.0-20260212201848-7aac2a2c5b7c
names="oxia versitygw minio postgresql"

path_of() {
  case "$1" in
    oxia) echo "$cache/oxia-$OXIA/oxia" ;;
    versitygw) echo "$cache/versitygw-$VERSITYGW/versitygw" ;;
    minio) echo "$cache/minio-$MINIO/minio" ;;
    postgresql) postgres_bin ;;
    *) return 1 ;;
  esac
}

# Debian keeps initdb and postgres out of PATH, under the major version.
postgres_bin() {
  local found
  found=$(ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] || found=$(command -v postgres || true)
  [ -n "$found" ] && echo "$found"
}

# Only the first module proxy is asked: falling back to "direct" would clone repositories one by one
# and hang where only the proxy is reachable.
go_first_proxy() {
  GOPROXY=$(go env GOPROXY | cut -d, -f1) CGO_ENABLED=0 go "$@"
}

# Built aside and moved into place, so that a build cut half-way never looks finished.
build_go() { # name, then the go arguments, in which @OUT@ stands for the file to write
  local name=$1 target stage
  shift
  target=$(path_of "$name")
  stage=$(mktemp -d)
  if GOBIN="$stage" go_first_proxy "${@/@OUT@/$stage/$name}" >"$stage/log" 2>&1; then
    mkdir -p "$(dirname "$target")"
    mv "$stage/$name" "$target"
    echo "servers: $name built: $target"
  else
    echo "servers: $name could not be built, its tests will skip; the last lines were:"
    tail -n 5 "$stage/log"
  fi
  rm -rf "$stage"
}

build() {
  local name=$1 target
  target=$(path_of "$name" || true)
  if [ -n "$target" ] && [ -x "$target" ]; then
    echo "servers: $name is there: $target"
    return
  fi
  if [ "$name" = postgresql ]; then
    install_postgresql
    return
  fi
  if ! command -v go >/dev/null; then
    echo "servers: $name needs Go 1.24 or newer to build and there is none; its tests will skip"
    return
  fi
  echo "servers: building $name (minutes, once)"
  case "$name" in
    oxia) build_go oxia build -C "$here/oxia" -trimpath -ldflags "-s -w" -o @OUT@ github.com/oxia-db/oxia/cmd ;;
    versitygw) build_go versitygw install -trimpath -ldflags "-s -w" "github.com/versity/versitygw/cmd/versitygw@v$VERSITYGW" ;;
    minio) build_go minio install -trimpath -ldflags "-s -w" "github.com/minio/minio@v$MINIO" ;;
  esac
}

install_postgresql() {
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "servers: installing the package postgresql"
    if DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql >/dev/null 2>&1 ||
      { apt-get update >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql >/dev/null 2>&1; }; then
      echo "servers: postgresql is there: $(postgres_bin)"
      return
    fi
  fi
  echo "servers: postgresql is not installed (package postgresql); its tests will skip"
}

case "${1:-}" in
  --list)
    for name in $names; do
      target=$(path_of "$name" || true)
      if [ -n "$target" ] && [ -x "$target" ]; then echo "$name $target"; fi
    done
    ;;
  -*) echo "usage: servers/build.sh [--list] [$names]" >&2; exit 2 ;;
  *)
    for name in ${*:-$names}; do
      case " $names " in *" $name "*) build "$name" ;; *) echo "servers: no such server: $name (there are: $names)" >&2; exit 2 ;; esac
    done
    ;;
esac
