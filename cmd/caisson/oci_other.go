//go:build !linux

package main

import (
	"fmt"
	"runtime"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// makeOCI fails: OCI runtimes need Linux.
func makeOCI(name string, _ backendSettings, _ images.HostOptions, _ []string) (sandbox.Backend, error) {
	return nil, fmt.Errorf("make backend %s: %w: it needs Linux, this is %s", name, sandbox.ErrUnsupported, runtime.GOOS)
}
