package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// Only runc as root mounts the image without noexec. The others refuse it.
func TestImageOnNoExec(t *testing.T) {
	worktest.RunOnNoExec(t, func(dir string) {
		own, _ := traitsOf(GVisor)
		for name, b := range map[string]*Backend{"gvisor": {traits: own}, "runc of an ordinary user": {rootless: true}} {
			if err := b.checkImageDir(dir); !errors.Is(err, sandbox.ErrUnavailable) || !errors.As(err, new(*programs.NoExecError)) {
				t.Errorf("%s: error %v", name, err)
			}
			if err := b.checkImageDir(""); err != nil {
				t.Errorf("%s: image host: %v", name, err)
			}
		}
		if err := (&Backend{}).checkImageDir(dir); err != nil {
			t.Errorf("runc: %v", err)
		}
	})
}

// The error of a runtime that can't be executed names the cause.
func TestRuntimeOnNoExec(t *testing.T) {
	worktest.RunOnNoExec(t, func(dir string) {
		path := filepath.Join(dir, "runsc")
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
		_, err := (&runtimeClient{path: path}).callRuntime(t.Context(), "", "--version")
		if !errors.Is(err, sandbox.ErrUnavailable) || !errors.As(err, new(*programs.NoExecError)) || strings.HasSuffix(err.Error(), ": ") {
			t.Errorf("error %v", err)
		}
	})
}
