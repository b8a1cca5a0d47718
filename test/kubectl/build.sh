#!/bin/sh
# Builds kubectl of a version of Kubernetes.
# Usage: build.sh v1.35.4 FILE
set -eu
version=$1 file=$(realpath -m "$2")
library=v0.${version#v1.}
cd "$(dirname "$0")"
if [ "$(go list -m -f '{{.Version}}' k8s.io/kubectl)" != "$library" ]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	cp main.go "$work"
	cd "$work"
	go mod init kubectl >/dev/null 2>&1
	go mod edit -require "k8s.io/kubectl@$library" -require "k8s.io/component-base@$library"
	go mod tidy
fi
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$file" .
