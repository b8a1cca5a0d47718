#!/bin/sh
# Builds the version from which the end-to-end tests upgrade, a release or a commit of this
# repository. It writes to dist/previous the image, tagged purelb.io/purelb:previous, and
# the manifests.
# Usage: previous.sh REVISION ARCH. A checkout without history has no REVISION: then there is
# nothing to upgrade from. It says so, and the test of the upgrade is skipped, visibly.
set -eu
cd "$(dirname "$0")/../.."
revision=$1 arch=$2 out=dist/previous
if [ -z "$revision" ]; then
	rm -rf $out
	mkdir -p $out
	echo "this checkout has no history, so there is no version to upgrade from" >$out/missing
	echo "WARNING: $(cat $out/missing): the upgrade is NOT tested" >&2
	exit
fi
version=$(git log -1 --format='%h (%s)' "$revision")
if [ "$(cat $out/version 2>/dev/null)" = "$version" ]; then
	exit
fi
echo "building the version from which to upgrade: $version"
rm -rf $out
mkdir -p $out/src
git archive "$revision" | tar -x -C $out/src
CGO_ENABLED=0 GOOS=linux GOARCH="$arch" go -C $out/src build -trimpath -ldflags "-s -w -X main.version=previous" -o ../purelb ./cmd
go -C tools run ./image -o "$PWD/$out/purelb.tar" -t purelb.io/purelb:previous -arch "$arch" -user 65532:65532 "$PWD/$out/purelb=/purelb"
bin/kustomize build $out/src/config/default | sed 's|purelb.io/purelb:dev|purelb.io/purelb:previous|' >$out/install.yaml
rm -rf $out/src
echo "$version" >$out/version
