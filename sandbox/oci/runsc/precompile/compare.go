package main

import (
	"bytes"
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
)

// compare compares every program, filled in with the values of this process,
// with what runsc would compile in it.
func (p programs) compare() error {
	options, err := sentryOptions()
	if err != nil {
		return err
	}
	if len(p.Sentry) != len(options) || len(p.Gofer) != len(goferOptions()) {
		return errors.New("the number of programs differs from that of the options")
	}
	var errs []error
	for i, o := range options {
		for _, o.ControllerFD = range []uint32{0, 9, 1 << 20} {
			errs = append(errs, compareProgram(p.Sentry[i], o.ConfigKey(), o.Vars(), sentryProgram(o)))
		}
	}
	for i, o := range goferOptions() {
		errs = append(errs, compareProgram(p.Gofer[i], o.ConfigKey(), o.Vars(), goferProgram(o)))
	}
	return errors.Join(errs...)
}

// compareProgram compares a precompiled program with one that is compiled now.
func compareProgram(precompiled precompiledseccomp.Program, key string, values precompiledseccomp.Values, atStart *seccomp.Program) error {
	if precompiled.Name != key {
		return fmt.Errorf("the filter of %s is registered for %s", key, precompiled.Name)
	}
	got, err := precompiled.RenderInstructions(values)
	if err != nil {
		return err
	}
	want, _, err := atStart.Build()
	if err != nil {
		return err
	}
	if !bytes.Equal(bpf.ToBytecode(got), bpf.ToBytecode(want)) {
		return fmt.Errorf("the precompiled filter differs from that of a start: %s", key)
	}
	return nil
}
