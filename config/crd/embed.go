// Package crd has the CustomResourceDefinitions of PureLB as files.
package crd

import "embed"

// Bases are the generated manifests, one for each kind, in the folder bases.
//
//go:embed bases/*.yaml
var Bases embed.FS
