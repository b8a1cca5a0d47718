#!/bin/sh
# Builds the version from which the end-to-end tests upgrade, a release or a commit of this
# repository. It writes to dist/previous the image, tagged purelb.io/purelb:previous, and
# the manifests.
# Usage: previous.sh REVISION ARCH. Without a revision, as in a checkout without history, it
# builds the present files.
set -eu
cd "$(dirname "$0")/../.."
revision=$1 arch=$2 out=dist/previous
version="the present files, because this checkout has no history"
[ -z "$revision" ] || version=$(git log -1 --format='%h (%s)' "$revision")
if [ -n "$revision" ] && [ "$(cat $out/version 2>/dev/null)" = "$version" ]; then
	exit
fi
echo "building the version from which to upgrade: $version"
rm -rf $out
mkdir -p $out/src
if [ -n "$revision" ]; then
	git archive "$revision" | tar -x -C $out/src
else
	cp -R api cmd config controllers go.mod go.sum internal nodeagent webhooks $out/src
fi
CGO_ENABLED=0 GOOS=linux GOARCH="$arch" go -C $out/src build -trimpath -ldflags "-s -w -X main.version=previous" -o ../purelb ./cmd
go -C tools run ./image -o "$PWD/$out/purelb.tar" -t purelb.io/purelb:previous -arch "$arch" -user 65532:65532 "$PWD/$out/purelb=/purelb"
bin/kustomize build $out/src/config/default | sed 's|purelb.io/purelb:dev|purelb.io/purelb:previous|' >$out/install.yaml
rm -rf $out/src
echo "$version" >$out/version
