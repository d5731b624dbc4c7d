package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// floodBytes is what the issue of the tests names: far more than any buffer.
const floodBytes = 3 << 30

// residentBound is what caisson may hold at its peak, in bytes: a Go program
// with its spill buffers, nowhere near the flood.
const residentBound = 160 << 20

// TestFloodKeepsMemoryFlat lets a command write 3 GiB: caisson's memory stays
// flat, and the result has head, tail and the exact count. In gVisor, which takes ten times
// as long for each byte, it writes 256 MiB with SAMPLE.
func TestFloodKeepsMemoryFlat(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		size := int64(floodBytes)
		if backend == "gvisor" && os.Getenv("SAMPLE") != "" {
			size = 256 << 20
		}
		m := newMachine(t)
		command := fmt.Sprintf("echo first-line; yes | head -c %d; echo last-line", size)
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend}, m.playing(t, []scriptCall{shell(command)})...)...)...)
		peak := watchMemory(run.process.Process.Pid, "VmHWM")
		started := time.Now()
		out := run.wait(t, 8*time.Minute)
		t.Logf("%d bytes in %s", size, time.Since(started).Round(time.Millisecond))
		out.records = readRecords(t, out.stdout)
		out.want(t, 0)
		switch bytes := <-peak; {
		case bytes == 0:
			t.Error("caisson's memory was never read")
		case bytes > residentBound:
			t.Errorf("caisson held %d MiB at its peak, want at most %d", bytes>>20, residentBound>>20)
		default:
			t.Logf("peak of caisson: %d MiB", bytes>>20)
		}
		text := m.whole(t, out.records).results(t)[0].text()
		total := strconv.FormatInt(size+int64(len("first-line\nlast-line\n")), 10)
		for _, want := range []string{"first-line\n", "y\ny\n", "last-line\n", total} {
			if !strings.Contains(withoutSeparators(text), want) {
				t.Errorf("the result lacks %q:\n%s\n…\n%s", want, text[:min(300, len(text))], text[max(0, len(text)-300):])
			}
		}
		if len(text) > 100_000 {
			t.Errorf("the model was sent %d bytes", len(text))
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}

// withoutSeparators joins the groups of digits of numbers.
func withoutSeparators(text string) string {
	return regexp.MustCompile(`(\d),(\d{3})\b`).ReplaceAllString(text, "$1$2")
}

// watchMemory polls a field of a process's status until it ends and then sends
// the largest value in bytes.
func watchMemory(pid int, field string) <-chan int64 {
	result := make(chan int64, 1)
	pattern := regexp.MustCompile(field + `:\s+(\d+) kB`)
	go func() {
		var peak int64
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			found := pattern.FindSubmatch(text)
			if err != nil || found == nil {
				break
			}
			kib, _ := strconv.ParseInt(string(found[1]), 10, 64)
			peak = max(peak, kib<<10)
		}
		result <- peak
	}()
	return result
}
