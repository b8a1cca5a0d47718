#!/bin/sh
# Builds what the tests upgrade from, a release or commit of this repository, to
# dist/previous: its image, tagged purelb.io/purelb:previous, and its manifests.
# usage: previous.sh REVISION ARCH; without a revision, as in a checkout without
# history, it takes the files as they are.
set -eu
cd "$(dirname "$0")/../.."
revision=$1 arch=$2 out=dist/previous
version="this very commit, as there is no history here"
[ -z "$revision" ] || version=$(git log -1 --format='%h (%s)' "$revision")
if [ -n "$revision" ] && [ "$(cat $out/version 2>/dev/null)" = "$version" ]; then
	exit
fi
echo "building what to upgrade from: $version"
rm -rf $out
mkdir -p $out/src
if [ -n "$revision" ]; then
	git archive "$revision" | tar -x -C $out/src
else
	cp -R api cmd config controllers go.mod go.sum internal nodeagent webhooks $out/src
fi
CGO_ENABLED=0 GOOS=linux GOARCH="$arch" go -C $out/src build -trimpath -ldflags "-s -w -X main.version=previous" -o ../purelb ./cmd
go -C tools run ./image -o "$PWD/$out/purelb.tar" -t purelb.io/purelb:previous -arch "$arch" -user 65532:65532 "$PWD/$out/purelb=/purelb"
go tool -modfile=tools/go.mod kustomize build $out/src/config/default | sed 's|purelb.io/purelb:dev|purelb.io/purelb:previous|' >$out/install.yaml
rm -rf $out/src
echo "$version" >$out/version
