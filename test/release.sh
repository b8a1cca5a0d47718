#!/bin/sh
# Makes the release of HEAD, as it is at the start, twice, by make release-dry-run, and fails unless all files have
# the same bytes. The two clones have paths of different lengths; the second has a compile cache of its own, so that
# everything is compiled there again, another umask, time zone, language and Go settings. With SHARED_CACHE=1 it has
# the first one's cache: everything is linked, generated and packed again then, and not compiled. At the end the
# checksums are checked, and the images are pushed to a registry of this machine, which has to find the digests that
# images.txt names.
# Usage: release.sh KUSTOMIZE CRANE VARIABLE=VALUE…: variables of make, by default one platform.
set -eu
cd "$(dirname "$0")/.."
kustomize=$1 crane=$2
shift 2
[ $# -gt 0 ] || set -- RELEASE_ARCHES=amd64 PLATFORMS=linux/amd64
[ -z "$(git status --porcelain)" ] || echo "test-release: changes that are not committed are not tested"
head=$(git rev-parse HEAD)
work=$(mktemp -d "${TMPDIR:-/tmp}/purelb-release-XXXXXX")
registry=
clean() {
	status=$?
	trap - EXIT INT TERM
	[ -z "$registry" ] || kill "$registry"
	chmod -R u+w "$work"
	rm -rf "$work"
	exit $status
}
trap clean EXIT
trap 'exit 130' INT TERM

# release FOLDER VARIABLE=VALUE… makes the release in a clone. Meanwhile somebody may commit.
release() {
	clone=$work/$1
	shift
	git clone --quiet --no-hardlinks . "$clone"
	git -C "$clone" checkout --quiet --detach "$head"
	mkdir "$clone/bin"
	cp "$kustomize" "$clone/bin/"
	env -u MAKEFLAGS -u MAKEOVERRIDES -u MFLAGS -u MAKELEVEL -u GOFLAGS "$@" make -C "$clone" release-dry-run VERSION=1.2.3
}
echo "test-release: the first clone"
release a "$@"
cache=$work/cache
[ -z "${SHARED_CACHE:-}" ] || cache=$(go env GOCACHE)
echo "test-release: the second clone, with the compile cache $cache"
(umask 077 && release a-folder/with/a/longer/path "$@" \
	GOCACHE="$cache" GOFLAGS=-buildvcs=true GOAMD64=v2 TZ=Asia/Kolkata LC_ALL=C)
first=$work/a/dist/release second=$work/a-folder/with/a/longer/path/dist/release
# diff compares what is in the files, and not their permissions, which the umask changes.
diff -r "$first" "$second" || { echo "test-release: the two releases differ"; exit 1; }
(cd "$first" && sha256sum --quiet --strict --check SHA256SUMS)

"$crane" registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
registry=$!
i=0
until address=$(sed -n 's/.*serving on port \([0-9]*\).*/127.0.0.1:\1/p' "$work/registry") && [ -n "$address" ]; do
	i=$((i + 1))
	[ $i -le 300 ] || { cat "$work/registry"; exit 1; }
	sleep 0.1
done
while read -r tag reference; do
	"$crane" push "$first/oci/$tag" "$address/purelb:$tag" >"$work/pushed"
	[ "${reference#*@}" = "$("$crane" digest "$address/purelb:$tag")" ] ||
		{ echo "test-release: $tag is pushed as $(cat "$work/pushed"), not $reference"; exit 1; }
	"$crane" validate --remote "$address/purelb:$tag"
done <"$first/images.txt"
echo "test-release: $(find "$first" -type f | wc -l) files have the same bytes in both clones ($*)"
