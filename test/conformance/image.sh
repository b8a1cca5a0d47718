#!/bin/bash
# image.sh TESTS AGNHOST TAR: write the image of Kubernetes' tests, without Docker or a
# registry. TESTS is the program of the tests, AGNHOST that of the image. The tests also run
# a shell, curl, wget, nc, ip and ss in it: these come from this machine, and what it lacks
# from Debian packages.
set -euo pipefail
tests=$(realpath "$1") agnhost=$(realpath "$2") tar=$(realpath -m "$3")
# The others of this name are old ones, which few tests use.
image=$("$tests" --list-images | grep '^registry.k8s.io/e2e-test-images/agnhost:[0-9.]*$' | sort -V | tail -1)
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root packages=$work/packages
mkdir -p "$root"/{bin,etc,tmp,usr/bin,usr/sbin,sbin} "$packages"
chmod 755 "$root" && chmod 1777 "$root/tmp"

# unpack PACKAGE...: put the contents of Debian packages below $packages
unpack() {
	echo "conformance: apt-get download $*, for the image of the tests" >&2
	(cd "$packages" && apt-get -qq download "$@" && for deb in ./*.deb; do dpkg -x "$deb" .; done && rm -f ./*.deb) || {
		echo "conformance: cannot get $*: install them, or let apt-get reach a mirror (apt-get update)" >&2
		exit 1
	}
}

# find_program NAME PACKAGE...: print the path of a program
find_program() {
	local found name=$1
	shift
	if ! found=$(command -v "$name"); then
		unpack "$@"
		found=$(find "$packages" -path "*/bin/$name" | head -1)
	fi
	[ -n "$found" ] || { echo "conformance: $* have no $name" >&2; exit 1; }
	realpath "$found"
}

# add PROGRAM TARGET: copy a program, and the libraries that it needs
add() {
	local libraries
	install -D -m 755 "$1" "$root$2"
	libraries=$(LD_LIBRARY_PATH=$(find "$packages" -name '*.so.*' -printf '%h:' | tr '\n' ':') ldd "$1" 2>/dev/null || true)
	case $libraries in *"not found"*) echo "conformance: $1 lacks libraries: $libraries" >&2; exit 1 ;; esac
	{ grep -o '/[^ ]*' <<<"$libraries" || true; } | while read -r library; do
		[ -e "$root${library#"$packages"}" ] || install -D -m 755 "$(realpath "$library")" "$root${library#"$packages"}"
	done
}

busybox=$(find_program busybox busybox-static)
add "$busybox" /bin/busybox
"$busybox" --list | while read -r applet; do
	ln -sf busybox "$root/bin/$applet"
done
# The tests use options of these that busybox does not have, or not well.
while read -r name target needed; do
	rm -f "$root$target"
	# shellcheck disable=SC2086 # several packages
	program=$(find_program "$name" $needed)
	add "$program" "$target"
done <<-END
	bash /bin/bash bash
	curl /bin/curl curl
	wget /bin/wget wget
	nc.openbsd /bin/nc netcat-openbsd libbsd0 libmd0
	ip /bin/ip iproute2
	ss /bin/ss iproute2
END
ln -sf bash "$root/bin/sh"
echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# wget tries 20 times by default: the tests count failures.
echo 'tries = 1' >"$root/etc/wgetrc"

mkdir -p "$(dirname "$tar")"
go -C tools run ./image -o "$tar" -t "$image" -cmd pause -path /bin:/sbin:/usr/bin:/usr/sbin:/ \
	-arch "$(go env GOARCH)" "$agnhost=/agnhost" "$root=/"
echo "conformance: wrote $tar ($image)" >&2
