package oci

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

// copyRuntime gives a bed a runtime that the test may damage.
func (b *bed) copyRuntime(t *testing.T) (path string) {
	t.Helper()
	from, err := os.Open(b.backend.options.RuntimePath)
	must(t, err)
	defer from.Close()
	path = filepath.Join(filepath.Dir(b.state), filepath.Base(from.Name()))
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o755)
	must(t, err)
	_, err = io.Copy(to, from)
	must(t, errors.Join(err, to.Close()))
	o := b.backend.options
	o.RuntimePath = path
	b.backend, err = New(o)
	must(t, err)
	return path
}

// A container that has ended is removed without its runtime. Without its
// cgroup, which lists its processes, the first Destroy fails and says so, and
// another one removes everything.
func TestRemoveWithoutRuntime(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		path := b.copyRuntime(t)
		if v, err := b.backend.runtime.queryVersion(t.Context()); err != nil || v.name == "crun" {
			t.Skipf("needs runc or runsc: %v, %v", v, err)
		}
		sb, err := b.backend.Create(t.Context(), b.spec(t, "ses_alone"))
		must(t, err)
		needed := os.Geteuid() != 0
		must(t, os.Rename(path, path+"-away"))
		err = sb.Destroy(context.Background())
		if needed != (err != nil) {
			t.Errorf("Destroy without the runtime: %v", err)
		}
		must(t, os.Rename(path+"-away", path))
		must(t, sb.Destroy(context.Background()))
		b.nothingLeft(t, "ses_alone")
	})
}

// keepVersion caches a false version of a runtime, once its file is old enough.
func keepVersion(t *testing.T, cache, path string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; pauseBriefly() {
		_, keep := lifecycle.RecallFact(cache, "version", path)
		keep("runc version 0.0.0-kept")
		if fact, _ := lifecycle.RecallFact(cache, "version", path); fact != "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no fact about %s is kept", path)
		}
	}
}

// A runtime with a cached version is run again once its file has changed, and
// the error has the cause.
func TestDamagedRuntime(t *testing.T) {
	b := newBed(t, Runc, os.Geteuid())
	installed := b.backend.runtime
	must(t, os.MkdirAll(installed.cache, 0o700))
	v, err := installed.queryVersion(t.Context())
	must(t, err)
	if facts, err := filepath.Glob(filepath.Join(installed.cache, "fact-*")); err != nil || len(facts) != 1 {
		t.Fatalf("control: %d facts are kept of %s: %v", len(facts), installed.path, err)
	} else { // a lie shows that it is believed
		must(t, os.WriteFile(facts[0], []byte(v.name+" version 0.0.0-recalled"), 0o600))
	}
	recall := func(path string) (runtimeVersion, error) {
		return (&runtimeClient{path: path, cache: installed.cache, log: installed.log}).queryVersion(t.Context())
	}
	if got, err := recall(installed.path); err != nil || got.number != "0.0.0-recalled" {
		t.Errorf("control: version %v, %v", got, err)
	}
	path := b.copyRuntime(t)
	if got, err := recall(path); err != nil || got != v {
		t.Errorf("version of a copy %v, %v, want %v", got, err, v)
	}
	keepVersion(t, installed.cache, path)
	if got, err := recall(path); err != nil || got.number != "0.0.0-kept" {
		t.Errorf("control: version of a copy %v, %v", got, err)
	}
	must(t, os.Truncate(path, 1000))
	if _, err := recall(path); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), filepath.Base(path)) {
		t.Errorf("damaged runtime: %v", err)
	}
	for _, number := range []string{"1.0", "2.0"} {
		must(t, os.WriteFile(path, []byte("#!/bin/sh\necho runc version "+number+"\n"), 0o755))
		keepVersion(t, installed.cache, path)
		if got, err := recall(path); err != nil || got.number != number {
			t.Errorf("script: version %v, %v, want %s", got, err, number)
		}
	}
}
