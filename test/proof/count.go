package main

import (
	"bytes"
	"regexp"
	"strconv"
)

// testCounter counts the tests of Go, run with -v, and the specs of Ginkgo that a program
// reports in what it prints. Where a test is a suite of Ginkgo, the specs count as well.
type testCounter struct {
	passed, failed int
	line           []byte // what was printed since the end of a line
}

var (
	// colour is a sequence by which Ginkgo chooses a colour.
	colour = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	goTest = regexp.MustCompile(`^ *--- (PASS|FAIL): `)
	specs  = regexp.MustCompile(`^(?:SUCCESS!|FAIL!) -- (\d+) Passed \| (\d+) Failed `)
)

// Write takes some of what a program prints. It never fails.
func (c *testCounter) Write(p []byte) (int, error) {
	c.line = append(c.line, p...)
	for {
		line, rest, ok := bytes.Cut(c.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		c.count(colour.ReplaceAllString(string(line), ""))
		c.line = rest
	}
}

func (c *testCounter) count(line string) {
	if m := goTest.FindStringSubmatch(line); m != nil {
		if m[1] == "PASS" {
			c.passed++
		} else {
			c.failed++
		}
	}
	if m := specs.FindStringSubmatch(line); m != nil {
		passed, _ := strconv.Atoi(m[1]) // a number, by the regular expression
		failed, _ := strconv.Atoi(m[2])
		c.passed, c.failed = c.passed+passed, c.failed+failed
	}
}
