package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/tools/workspace"
)

// BenchmarkRecord is one small record, without the sync.
func BenchmarkRecord(b *testing.B) {
	r, err := NewRecorder(RecorderOptions{Dir: b.TempDir(), Session: "ses_01JD0000000000000000000000"})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	p := ToolCalled{CallID: "tu_1", Name: "shell", Summary: "sh test.sh"}
	for b.Loop() {
		if _, err := r.Write(Entry{Actor: ActorTool, Payload: p}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRecordSynced is what stands before each command.
func BenchmarkRecordSynced(b *testing.B) {
	r, err := NewRecorder(RecorderOptions{Dir: b.TempDir(), Session: "ses_01JD0000000000000000000000"})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	p := ToolCalled{CallID: "tu_1", Name: "shell", Summary: "sh test.sh"}
	for b.Loop() {
		if _, err := r.Write(Entry{Actor: ActorTool, Payload: p}); err != nil {
			b.Fatal(err)
		}
		if err := r.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSnapshot looks at workspaces of some sizes.
func BenchmarkSnapshot(b *testing.B) {
	for _, files := range []int{100, cheapEntries, 20_000} {
		b.Run(fmt.Sprint(files), func(b *testing.B) {
			root := b.TempDir()
			for i := range files {
				dir := filepath.Join(root, fmt.Sprint(i/100))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			dir, err := workspace.OpenDir(root)
			if err != nil {
				b.Fatal(err)
			}
			defer dir.Close()
			reader, err := workspace.NewReader(dir, workspace.ReaderOptions{MaxEntries: snapshotEntries})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := takeSnapshot(b.Context(), reader); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
