#!/bin/sh
# Runs make demo and make test as on a machine that has never seen this project: in a clean
# clone of HEAD, with an empty home folder, module cache, build cache and lab cache. It
# keeps only the Debian packages that are installed. It takes most of an hour on two cores.
# KEEP_FRESH=1 keeps the folder with the clone and the caches.
set -eu
cd "$(dirname "$0")/.."
source=$PWD
fresh=$(mktemp -d "${TMPDIR:-/tmp}/purelb-fresh-XXXXXX")
[ -z "$(git status --porcelain)" ] || echo "test-fresh: changes that are not committed are not tested"

clean() {
	status=$?
	trap - EXIT INT TERM
	[ ! -x "$fresh/clone/bin/lab" ] || "$fresh/clone/bin/lab" down || status=1
	if [ -n "${KEEP_FRESH:-}" ]; then
		echo "test-fresh: kept $fresh"
	else
		rm -rf "$fresh" || status=1
	fi
	exit $status
}
trap clean EXIT
trap 'exit 130' INT TERM

git clone --quiet --no-hardlinks "$source" "$fresh/clone"
mkdir "$fresh/home"

# run TARGET… runs make without the environment variables that name caches of earlier runs,
# and without settings of Go other than those about the network.
run() {
	start=$(date +%s)
	env -u GOPATH -u GOMODCACHE -u GOCACHE -u GOENV -u GOFLAGS -u GOBIN -u GOWORK -u XDG_CACHE_HOME -u XDG_CONFIG_HOME \
		-u KUBECONFIG -u KUBEBUILDER_ASSETS -u MAKEFLAGS -u MAKEOVERRIDES -u MFLAGS -u MAKELEVEL \
		HOME="$fresh/home" make -C "$fresh/clone" "$@"
	echo "test-fresh: make $* passed in $(($(date +%s) - start)) s"
}
run demo
run test
echo "test-fresh: make demo and make test passed in a clean clone with empty caches"
