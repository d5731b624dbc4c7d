package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const output = `goos: linux
pkg: github.com/caisson-run/caisson/e2e
BenchmarkExec/docker-2   	     100	   0 ns/op	  1000000 host-p50-ns	 45000000 engine-api-p50-ns	 1 killed-by-gid	 1800000 p50-ns
BenchmarkKill/docker-2   	     100	   3 ns/op	  14000000 p99-ns
BenchmarkIdle/docker-2   	     1	   3 ns/op	  5000 KiB-a-session
BenchmarkSearch/grep-2   	      11	   0 ns/op	  90000000 cpu-ns	 500000000 rg-p50-ns	 600000000 overlay-p50-ns	 450000000 p50-ns
BenchmarkSearch/glob-2   	      11	   0 ns/op	  60000000 overlay-p50-ns	 50000000 p50-ns
BenchmarkSession/bind-2         	       3	4399804733 ns/op	     25000 KiB-peak	     13592 empty-KiB-peak
BenchmarkOutput/runc-2   	     10	   0 ns/op	  100000000 host-p50-ns	 200000000 p50-ns	 1.5 MiB-grown
BenchmarkTrials-2   	       3	   0 ns/op	 20000000000 hand-p50-ns	 7000000000 runc-p50-ns
BenchmarkGrowth/overlay-2   	       5	   0 ns/op	 66000000 1000-p50-ns	 70000000 10000-p50-ns	 112200000 100000-p50-ns
BenchmarkNetwork/runc-2   	      5	   0 ns/op	 -20 KiB-more	 2.5 download-Gbit/s	 200000000 download-p50-ns	 100000000 relay-download-p50-ns
PASS
pkg: github.com/caisson-run/caisson/sandbox/oci
BenchmarkStart/gvisor-2 	       3	 0 ns/op	 100000000 bare-p50-ns	 125000000 p50-ns
PASS
`

func TestTable(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# Title\n\n![Bars](bars.svg)\n\n"+begin+"\nstale\n"+end+"\n\nby hand\n"+beginGrowth+"\n"+end+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(page, "a machine", strings.NewReader(output), &out); err != nil {
		t.Fatal(err)
	}
	squeezed := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"exec round trip, docker / host fork+exec (kills by gid) 1.800 1.000 1.80 ≤ 1.7 MISSED",
		"exec round trip, docker (kills by gid) 1.800 45.000 25.00 ≥ 25 met",
		"cold start, gvisor / bare run of the stock runsc 125.000 100.000 1.25 ≤ 1.25 met",
		"kill to dead, 16 daemons, p99, docker 14.00 ms ≤ 15 ms met",
		"idle memory a session (PSS), docker 5.12 MB ≤ 5.5 MB met",
		"every byte to the host / dd | cat on the host, runc 200.000 100.000 0.50 ≥ 0.4 met",
		"as in a session / dd | cat on the host, runc ≥ 0.4 not measured",
		"memory that the host needs more for it, runc 1.50 MiB ≤ 16 MiB met",
		"ripgrep with as many threads 450.000 500.000 0.90 ≤ 1.2 met",
		"grep of the same in overlay mode / in bind mode 600.000 450.000 1.33 ≤ 1.5 met",
		"memory of a session on these files, bind mode 25.60 MB ≤ 40 MB met",
		"fd with as many threads 50.000 ≤ 1.2 no peer: fdfind of Debian's fd-find",
		"network, one download, runc 2.50 Gbit/s ≥ 2 Gbit/s met",
		"network, one download, runc / a plain proxy on the host 200.000 100.000 0.50 network",
		"network, one download, runc / slirp4netns, MTU 1500 200.000 no peer: slirp4netns",
		"network, idle memory a session (PSS), more than without, runc -20.00 KiB ≤ 300 KiB met",
		"`caisson exec -- true`, overlay mode, 100000 / 1000 files of the workspace 112.200 66.000 1.70 ≤ 1.5 MISSED",
		"`caisson trace show`, 100000 / 1000 records of the session ≤ 100 not measured",
		"READ of 4 KiB / os.ReadFile ≤ 0.9 not measured",
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got := string(data)
	for _, want := range []string{
		"# Title\n", "a machine\n" + end, "\n\nby hand\n",
		"| `caisson exec -- true`, overlay mode | 1000, 10000, 100000 files of the workspace | 66 | 70 | 112 | 1.7 | 1.5 |\n\na machine\n" + end,
		"| run `sh -c true` in a running sandbox, ms | 1.8 |  |  |  |\n",
		"| start a sandbox and run a first command, ms |  | 125.0 |  |  |\n",
		"| 20 trials that do nothing, s |  |  | 7.0 | 20.0, `docker run` twice a trial |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("page lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "stale") {
		t.Error("the old table is still there")
	}
	picture, err := os.ReadFile(filepath.Join(filepath.Dir(page), "bars.svg"))
	if err != nil || !strings.Contains(string(picture), ">20.0, docker run twice a trial</text>") {
		t.Errorf("no picture of the table: %v\n%s", err, picture)
	}
}

var update = flag.Bool("update", false, "write the pictures of docs/benchmarks.md")

// TestPictures holds the pictures of the page against its tables, which people change, too.
func TestPictures(t *testing.T) {
	const file = "../../docs/benchmarks.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := writePictures(file, string(page)); err != nil {
			t.Fatal(err)
		}
	}
	drawn := pictures(string(page))
	if len(drawn) < 2 {
		t.Errorf("%d pictures", len(drawn))
	}
	for name, want := range drawn {
		if got, err := os.ReadFile(filepath.Join(filepath.Dir(file), name)); err != nil || string(got) != want {
			t.Errorf("docs/%s isn't what its table says (%v): go test -C .ci ./benchtable -update", name, err)
		}
	}
}

func TestBars(t *testing.T) {
	got := bars("| | runc | docker | for comparison |\n|---|---|---|---|\n| a `b` < c, ms | 1.0 | | 4.0, on the host |\n")
	for _, want := range []string{
		`y="14">a b &lt; c, ms</text>`, `>runc</text><rect x="70" y="22" width="45.0" height="12"/><text x="121.0" y="32">1.0</text>`,
		`></text><rect class="peer" x="70" y="39" width="180.0" height="12"/><text x="256.0" y="49">4.0, on the host</text>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
	if strings.Contains(got, "docker") {
		t.Errorf("a bar without a number:\n%s", got)
	}
	got = bars("| | with | ms | ms | ms | times | at most |\n|---|---|---|---|---|---|---|\n| run | 1, 10, 100 things of it | 5 | 6 | 10 | 2.0 | 1.5 |\n")
	for _, want := range []string{">run, ms by number of things of it</text>", ">1</text>", ">10</text>", ">100</text>", `width="90.0"`, `width="180.0"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
	if strings.Count(got, "<rect ") != 3 {
		t.Errorf("want three bars:\n%s", got)
	}
}

func TestNothingMeasured(t *testing.T) {
	if err := run("", "", strings.NewReader("PASS\n"), io.Discard); err == nil {
		t.Error("no error")
	}
	if _, err := replace("no markers", begin, "x"); err == nil {
		t.Error("a page without markers was written")
	}
}

// A row whose benchmark was moved or renamed would be printed as not measured: each is
// in its package, and is run by bench.sh.
func TestRowsHaveBenchmarks(t *testing.T) {
	script, err := os.ReadFile("../bench.sh")
	if err != nil {
		t.Fatal(err)
	}
	var all []metric
	for _, r := range rows() {
		all = append(all, r.ours)
	}
	for _, f := range figures() {
		all = append(all, f.ours("docker"), f.ours("gvisor"))
	}
	for _, m := range all {
		name, _, _ := strings.Cut(m.bench, "/")
		files, err := filepath.Glob("../../" + m.pkg + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "func Benchmark"+name+"(")
		}) {
			t.Errorf("%s: package %s has no Benchmark%s", m.unit, m.pkg, name)
		}
		measured := regexp.MustCompile(`(?m)^measure \./` + regexp.QuoteMeta(m.pkg) + ` '\^Benchmark\(?([A-Za-z]+\|)*` + name + `\b`)
		if !measured.Match(script) {
			t.Errorf("%s: bench.sh does not measure Benchmark%s of %s", m.unit, name, m.pkg)
		}
	}
}
