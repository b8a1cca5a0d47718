#!/bin/sh
# Builds into dist/olm what the tests of OLM need: OLM and its tools in the versions of
# programs/go.mod, two versions of PureLB that differ in nothing but their version, their
# bundles, and a catalogue of both. Nothing is pulled from a registry or pushed to one.
# Usage: prepare.sh ARCH. Go modules come from Go's module proxy, unless they are cached.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD arch=$1 out=$PWD/dist/olm programs=test/olm/programs
rm -rf "$out"
mkdir -p "$out/catalog"
export CGO_ENABLED=0

# build PACKAGE OUTPUT compiles a program of $programs. The tag is for opm: without it opm needs
# a C library.
build() {
	go -C $programs build -trimpath -ldflags "-s -w" -tags containers_image_openpgp -o "$2" "github.com/operator-framework/$1"
}

# image FLAGS... writes an image of files.
image() {
	go -C tools run ./image -arch "$arch" "$@"
}

version_of() {
	go -C $programs list -m -f '{{.Version}}' "github.com/operator-framework/$1"
}

echo "building OLM and opm: five minutes or more the first time"
for package in operator-lifecycle-manager/cmd/olm operator-lifecycle-manager/cmd/catalog operator-lifecycle-manager/util/cpb operator-registry/cmd/opm; do
	GOOS=linux GOARCH=$arch build $package "$root/bin/olm/"
done
build operator-registry/cmd/opm "$out/opm" # for this machine
GOOS=linux GOARCH=$arch go -C test/olm build -trimpath -ldflags "-s -w" -o "$root/bin/olm/cp" ./cp
olm=lab.local/olm:$(version_of operator-lifecycle-manager) opm=lab.local/opm:$(version_of operator-registry)
image -o "$out/olm.tar" -t "$olm" -user 1001:1001 \
	"$root/bin/olm/olm=/bin/olm" "$root/bin/olm/catalog=/bin/catalog" "$root/bin/olm/cpb=/bin/cpb" "$root/bin/olm/cp=/bin/cp"
image -o "$out/opm.tar" -t "$opm" -user 1001:1001 "$root/bin/olm/opm=/opm"
printf '{"olm": "%s", "opm": "%s"}\n' "$olm" "$opm" >"$out/images.json"

"$out/opm" init purelb --default-channel=candidate --output=yaml >"$out/catalog/purelb.yaml"
for version in 0.1.0 0.2.0; do
	echo "building PureLB $version and its bundle"
	GOOS=linux GOARCH=$arch go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$out/purelb-$version" ./cmd
	image -o "$out/purelb-$version.tar" -t "purelb.io/purelb:v$version" -user 65532:65532 "$out/purelb-$version=/purelb"
	mkdir "$out/$version"
	cp -R config "$out/$version"
	find "$out/$version" -name '*.go' -delete # go test ./... would take them for packages of PureLB
	go -C tools/bundle run . -root "$out/$version" -version $version -channel candidate -image "purelb.io/purelb:v$version"
	files=$(cd "$out/$version/bundle" && find manifests metadata -type f | sort | sed "s|.*|$out/$version/bundle/&=/&|")
	# No file name has a space.
	name=$(image -o "$out/bundle-$version.tar" -t lab.local/purelb-bundle -by-digest $files)
	"$out/opm" render "$out/$version/bundle" --alpha-image-ref-template "$name" \
		--migrate-level bundle-object-to-csv-metadata --output=yaml >>"$out/catalog/purelb.yaml"
done
cat >>"$out/catalog/purelb.yaml" <<EOF
---
schema: olm.channel
package: purelb
name: candidate
entries:
- name: purelb.v0.1.0
- name: purelb.v0.2.0
  replaces: purelb.v0.1.0
EOF
"$out/opm" validate "$out/catalog"
