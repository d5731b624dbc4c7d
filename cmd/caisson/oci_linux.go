package main

import (
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/oci"
)

// makeOCI makes the gvisor or the runc backend.
func makeOCI(name string, s backendSettings, host images.HostOptions, protect []string) (sandbox.Backend, error) {
	return oci.New(oci.Options{
		Kind: oci.Kind(name), RuntimePath: s.runtime, GuestPath: s.guest, StateDir: s.stateDir, Protect: protect,
		Host: host, Logger: s.logger,
	})
}
