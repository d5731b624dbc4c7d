package oci

import (
	"os"
	"strings"
	"testing"
)

// TestTail keeps the end of standard error, and separates gVisor's log from
// other text, such as a panic.
func TestTail(t *testing.T) {
	const line = `{"msg":"FATAL ERROR: x\ny","level":"warning"}` + "\n"
	log, panics := strings.Repeat(line, maxTail/len(line)), "panic: it\n"+strings.Repeat("goroutine\n", maxHead)
	r, w, err := os.Pipe()
	must(t, err)
	said := readTail(r)
	go func() {
		_, _ = w.WriteString("lost\n" + log + panics + line) // what is missing fails below
		_ = w.Close()
	}()
	<-said.done
	defer said.close()
	kept, others := said.split()
	if string(others) != panics[:maxHead] || !strings.HasSuffix(log+line, string(kept)) || len(kept) < maxTail/2 {
		t.Errorf("%d bytes of the log are kept; others: %.80q", len(kept), others)
	}
}
