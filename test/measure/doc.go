// Package measure reads what processes use and what they count, for the benchmarks in
// test/bench and test/scale: processor time and memory from /proc, metrics in the text
// format of Prometheus, and profiles in the format of pprof.
package measure
