module github.com/purelb/purelb-operator/test/flannel

go 1.26

require github.com/flannel-io/flannel v0.26.7

require (
	github.com/go-logr/logr v1.4.2 // indirect
	github.com/vishvananda/netlink v1.3.0 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.31.0 // indirect
	k8s.io/klog/v2 v2.130.1 // indirect
)
