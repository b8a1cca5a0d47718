// Package measure reads what processes use and what they count, for the benchmarks in
// test/bench and test/scale: processor time and memory from /proc, metrics in the text
// format of Prometheus, and profiles in the format of pprof. For the soak and the proofs it
// measures how late the machine lets a process run.
package measure
