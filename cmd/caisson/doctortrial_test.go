package main

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/sandbox"
)

// Where nothing is limited, as in a user's runc sandbox, no number is said: "0
// processes" would be one.
func TestDoctorTrialLimits(t *testing.T) {
	s := &setup{conf: config.Config{File: config.File{RefuseLost: new(false)}}}
	for _, tt := range []struct {
		name   string
		limits sandbox.AttestedLimits
		words  string
	}{
		{"both", sandbox.AttestedLimits{MemoryBytes: 2 << 30, PIDs: 256}, ", 2.0 GiB of memory, 256 processes"},
		{"processes alone", sandbox.AttestedLimits{PIDs: 256}, ", memory without a limit, 256 processes"},
		{"none", sandbox.AttestedLimits{}, ", memory without a limit, processes without a limit"},
	} {
		got := s.attested(sandbox.Attestation{Limits: tt.limits}, sandbox.Info{}, 0, nil)
		if got.Result != resultOK || !strings.HasSuffix(got.Detail, tt.words) {
			t.Errorf("%s: %+v, want the end %q", tt.name, got, tt.words)
		}
	}
}
