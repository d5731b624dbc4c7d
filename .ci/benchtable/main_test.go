package main

import (
	"strings"
	"testing"
)

const output = `goos: linux
pkg: github.com/caisson-run/caisson/e2e
BenchmarkExec/host-2     	     100	   1000000 ns/op	   900000 p50-ns
BenchmarkExec/docker-2   	     100	   2000000 ns/op	  1800000 p50-ns
BenchmarkExec/engine-api 	      10	  50000000 ns/op	 45000000 p50-ns
PASS
pkg: github.com/caisson-run/caisson/sandbox/oci
BenchmarkStart/gvisor-2 	       3	 1250000 ns/op	 131.0 ms-bare	 1.250 vs-bare
PASS
`

func TestTable(t *testing.T) {
	measured, err := read(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	text := table(rows(), measured)
	for _, want := range []string{
		"exec round trip, docker / host fork+exec                  1.800      0.900     2.00  ≤ 1.7 MISSED",
		"1.25  ≤ 1.05 MISSED",
		"25.00  ≥ 25 met",
		"not measured here",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("table lacks %q:\n%s", want, text)
		}
	}
}
