// Package allocation decides which addresses a Service gets. It is pure: it
// knows no client, clock or logger.
//
// A ServiceGroup is parsed into a Group of ranges (ParseGroup); all groups
// together make a Catalog, which also holds the verdict on each: of two groups
// that overlap, the older is used. What is in use is derived from Services by
// the caller and passed in as an InUse; free is the range without what is in
// use and without what is never handed out.
//
// Allocate keeps every address that a Service has and may keep, and adds the
// first free one, in the order in which the ranges are written, for each
// family that lacks one.
package allocation
