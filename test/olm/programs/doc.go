// Package programs pins OLM, its catalogue operator and opm, which test/olm builds and runs.
// Its dependencies are some two hundred modules that no other module is to see.
package programs
