module github.com/purelb/purelb-operator/test/lab

go 1.26.0

require (
	github.com/godbus/dbus/v5 v5.2.2
	github.com/google/go-containerregistry v0.20.3
	github.com/spf13/cobra v1.10.2
	golang.org/x/mod v0.37.0
	golang.org/x/net v0.57.0
	golang.org/x/sys v0.47.0
)

require (
	github.com/containerd/stargz-snapshotter/estargz v0.16.3 // indirect
	github.com/gopacket/gopacket v1.3.1
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/klauspost/compress v1.17.11 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	github.com/vbatts/tar-split v0.11.6 // indirect
	golang.org/x/sync v0.10.0 // indirect
)
