module github.com/purelb/purelb-operator/test/conformance

go 1.26.0

require github.com/purelb/purelb-operator/test/lab v0.0.0

require (
	github.com/containerd/stargz-snapshotter/estargz v0.16.3 // indirect
	github.com/google/go-containerregistry v0.20.3 // indirect
	github.com/gopacket/gopacket v1.3.1 // indirect
	github.com/klauspost/compress v1.17.11 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.0 // indirect
	github.com/vbatts/tar-split v0.11.6 // indirect
	golang.org/x/mod v0.37.0 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sync v0.10.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/purelb/purelb-operator/test/lab => ../lab
