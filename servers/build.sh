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
OXIA_MENDED=1 # which state of mend_oxia; part of the cache path
VERSITYGW=1.8.0
MINIO=0.0.0-20260212201848-7aac2a2c5b7c
KAFKA=4.3.1       # as in kafka/pom.xml
SPARK_KAFKA=4.2.0 # as in spark-kafka/pom.xml
MAVEN_DEPENDENCY=3.6.1
names="oxia versitygw minio postgresql prometheus chromium kafka spark-kafka"

path_of() {
  case "$1" in
    oxia) echo "$cache/oxia-$OXIA-$OXIA_MENDED/oxia" ;;
    versitygw) echo "$cache/versitygw-$VERSITYGW/versitygw" ;;
    minio) echo "$cache/minio-$MINIO/minio" ;;
    postgresql) postgres_bin ;;
    prometheus) prometheus_bin ;;
    chromium) command -v chromium ;;
    kafka) echo "$cache/kafka-$KAFKA/lib" ;;
    spark-kafka) echo "$cache/spark-kafka-$SPARK_KAFKA/lib" ;;
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

# The system's, or the newest that was unpacked into the cache.
prometheus_bin() {
  local found
  found=$(command -v prometheus || true)
  [ -n "$found" ] || found=$(ls -d "$cache"/prometheus-*/prometheus 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] && echo "$found"
}

# Only the first module proxy is asked: falling back to "direct" would clone repositories one by one
# and hang where only the proxy is reachable.
go_first_proxy() {
  GOPROXY=$(go env GOPROXY | cut -d, -f1) CGO_ENABLED=0 go "$@"
}

# Oxia 0.14.0, the newest that can be had as a module, takes the offset of a write under one lock and appends it to
# the log under another. Two clients on one shard can swap places in between, and from then on the shard refuses every
# write. Later releases append under one lock; this gives 0.14.0 the same. Sessions and brokers are several clients, so
# nothing of ours can be tested without it.
mend_oxia() { # the directory of the module's sources, writable
  local file=$1/server/leader_controller.go
  sed -i -e '/^type leaderController struct {/a\	appendOrder sync.Mutex' \
    -e '/^func (lc \*leaderController) write(/a\	lc.appendOrder.Lock()\n\tdefer lc.appendOrder.Unlock()' "$file"
  [ "$(grep -c appendOrder "$file")" = 3 ]
}

# The mended module is built through a copy of our go.mod that replaces it by its directory.
build_oxia() {
  local stage source
  stage=$(mktemp -d)
  cp "$here/oxia/go.mod" "$here/oxia/go.sum" "$stage/" &&
    go_first_proxy mod download -C "$stage" github.com/oxia-db/oxia &&
    source=$(go_first_proxy list -C "$stage" -m -f '{{.Dir}}' github.com/oxia-db/oxia) &&
    cp -r "$source" "$stage/oxia" && chmod -R u+w "$stage/oxia" && mend_oxia "$stage/oxia" &&
    go_first_proxy mod edit -C "$stage" -replace "github.com/oxia-db/oxia=$stage/oxia" &&
    go_first_proxy build -C "$stage" -trimpath -ldflags "-s -w" -o "$out/oxia" github.com/oxia-db/oxia/cmd
  local status=$?
  rm -rf "$stage"
  return $status
}

# Built aside and moved into place, so that a build cut half-way never looks finished.
build_go() { # name, then the command that puts the binary of that name into $out
  local name=$1 target out
  shift
  target=$(path_of "$name")
  out=$(mktemp -d)
  if out="$out" GOBIN="$out" "$@" >"$out/log" 2>&1; then
    mkdir -p "$(dirname "$target")"
    mv "$out/$name" "$target"
    echo "servers: $name built: $target"
  else
    echo "servers: $name could not be built, its tests will skip; the last lines were:"
    tail -n 5 "$out/log"
  fi
  rm -rf "$out"
}

build() {
  local name=$1 target
  target=$(path_of "$name" || true)
  if [ -n "$target" ] && [ -x "$target" ]; then
    echo "servers: $name is there: $target"
    return
  fi
  if [ "$name" = postgresql ] || [ "$name" = chromium ]; then
    install_package "$name"
    return
  fi
  if [ "$name" = prometheus ]; then
    unpack_prometheus
    return
  fi
  if [ "$name" = kafka ] || [ "$name" = spark-kafka ]; then
    copy_packages "$name" "$target"
    return
  fi
  if ! command -v go >/dev/null; then
    echo "servers: $name needs Go 1.24 or newer to build and there is none; its tests will skip"
    return
  fi
  echo "servers: building $name (minutes, once)"
  case "$name" in
    oxia) build_go oxia build_oxia ;;
    versitygw) build_go versitygw go_first_proxy install -trimpath -ldflags "-s -w" "github.com/versity/versitygw/cmd/versitygw@v$VERSITYGW" ;;
    minio) build_go minio go_first_proxy install -trimpath -ldflags "-s -w" "github.com/minio/minio@v$MINIO" ;;
  esac
}

# PostgreSQL, and the browser in which pages are tested: Debian's packages, whose names are ours.
install_package() {
  local name=$1
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "servers: installing the package $name"
    if DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$name" >/dev/null 2>&1 ||
      { apt-get update >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$name" >/dev/null 2>&1; }; then
      echo "servers: $name is there: $(path_of "$name")"
      return
    fi
  fi
  echo "servers: $name is not installed (package $name); its tests will skip"
}

# Two programs out of the Debian package. Installing it would start a service and bring a dozen packages that no test
# needs; fetching it needs no rights at all.
unpack_prometheus() {
  local stage package version target
  stage=$(mktemp -d)
  if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    echo "servers: fetching the package prometheus"
    chmod 755 "$stage" # apt's own user writes into it
    (cd "$stage" && { apt-get download prometheus >/dev/null 2>&1 ||
      { apt-get update >/dev/null 2>&1 && apt-get download prometheus >/dev/null 2>&1; }; })
    package=$(ls "$stage"/prometheus_*.deb 2>/dev/null | head -n 1)
    if [ -n "$package" ] && dpkg-deb -x "$package" "$stage/root" && version=$(dpkg-deb -f "$package" Version) &&
      "$stage/root/usr/bin/prometheus" --version >/dev/null 2>&1 && "$stage/root/usr/bin/promtool" --version >/dev/null 2>&1; then
      version=${version#*:}
      target="$cache/prometheus-${version%%[+-]*}"
      mkdir -p "$target"
      # The server last: a copy cut half-way never looks finished.
      mv "$stage/root/usr/bin/promtool" "$target/promtool" && mv "$stage/root/usr/bin/prometheus" "$target/prometheus"
      rm -rf "$stage"
      echo "servers: prometheus is there: $target/prometheus"
      return
    fi
  fi
  rm -rf "$stage"
  echo "servers: prometheus cannot be had (package prometheus, by apt); its tests will skip"
}

# The Java packages that a pom.xml of ours names, with everything they need, in one directory.
copy_packages() { # name, directory
  local name=$1 target=$2 stage
  if ! command -v mvn >/dev/null; then
    echo "servers: $name needs Maven and there is none; its tests will skip"
    return
  fi
  echo "servers: fetching the packages of $name (a minute, once)"
  mkdir -p "$cache"
  stage=$(mktemp -d "$cache/fetching.XXXXXX") # on the cache's own file system, so that the move is atomic
  if mvn -q -B -f "$here/$name/pom.xml" "org.apache.maven.plugins:maven-dependency-plugin:$MAVEN_DEPENDENCY:copy-dependencies" \
    -DincludeScope=runtime -DoutputDirectory="$stage/lib" >"$stage/log" 2>&1; then
    mkdir -p "$(dirname "$target")"
    mv "$stage/lib" "$target"
    echo "servers: $name is there: $target"
  else
    echo "servers: $name could not be fetched, its tests will skip; the last lines were:"
    tail -n 5 "$stage/log"
  fi
  rm -rf "$stage"
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
