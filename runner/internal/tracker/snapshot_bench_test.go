package tracker

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/quarantine"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// BenchmarkSnapshot scans workspaces of several sizes.
func BenchmarkSnapshot(b *testing.B) {
	for _, files := range []int{100, 1000, 100_000} {
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
			reader, err := workspace.NewReader(dir, workspace.ReaderOptions{MaxEntries: 500_000})
			if err != nil {
				b.Fatal(err)
			}
			b.Run("files", func(b *testing.B) {
				for b.Loop() {
					f, err := changes.TakeFileStates(b.Context(), reader, root, changes.Look{})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := f.Compare(b.Context(), reader, nil, changes.Look{}); err != nil {
						b.Fatal(err)
					}
					f.Close()
				}
			})
			b.Run("repositories", func(b *testing.B) {
				for b.Loop() {
					q := quarantine.New(quarantine.Options{Reader: reader, Git: sandbox.GitReadOnly, Log: zap.NewNop()})
					q.Record(b.Context())
				}
			})
		})
	}
}
