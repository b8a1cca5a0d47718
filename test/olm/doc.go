// Package olm tests PureLB's bundle with the Operator Lifecycle Manager itself, in the lab:
// OLM installs PureLB from a catalogue, upgrades it under load, rotates its certificate,
// removes it and installs it again. prepare.sh builds what the tests need; make test-olm runs
// both.
package olm
