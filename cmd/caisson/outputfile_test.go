package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestReplacedOutput: closing a file fails if its name no longer leads to it. The
// control is an unchanged one.
func TestReplacedOutput(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"stays":   nil,
		"removed": os.Remove,
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".new", nil, 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"moved away": func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".moved") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			must(t, os.Mkdir(dir, 0o755))
			path := filepath.Join(dir, "answer")
			f, err := openOutputFile(path)
			must(t, err)
			if replace != nil {
				must(t, replace(path))
			}
			if _, err := io.WriteString(f, "the answer"); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); (err != nil) != (replace != nil) {
				t.Errorf("closed with %v", err)
			}
		})
	}
}
