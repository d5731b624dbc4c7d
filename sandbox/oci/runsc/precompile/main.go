// Command precompile writes a Go file for runsc's package main that registers
// the seccomp filters of the sentry and the gofer, so that a start doesn't
// compile them. It covers the options that Caisson starts runsc with; runsc
// compiles others at the start.
//
// The filters are rendered in a child process and compared with what runsc
// would compile in this one. The two have different process IDs, so a filter
// that contains the renderer's is detected.
package main

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	sentry "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

func main() {
	err := errors.New("usage: precompile FILE")
	switch {
	case len(os.Args) == 2 && os.Args[1] == renderArgument:
		err = encodePrograms(os.Stdout)
	case len(os.Args) == 2:
		err = writeFile(os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "precompile:", err)
		os.Exit(1)
	}
}

// renderArgument makes the command write the programs to standard output.
const renderArgument = "-render"

// programs are the filters, by the package that installs them.
type programs struct{ Sentry, Gofer []precompiledseccomp.Program }

func encodePrograms(w io.Writer) error {
	rendered, err := renderPrograms()
	if err != nil {
		return err
	}
	return gob.NewEncoder(w).Encode(rendered)
}

// writeFile compares the programs and writes them as a Go file.
func writeFile(name string) error {
	rendered, err := renderInChild()
	if err != nil {
		return err
	}
	if err := rendered.compare(); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(rendered.source()), 0o644)
}

func renderInChild() (programs, error) {
	var rendered programs
	self, err := os.Executable()
	if err != nil {
		return rendered, err
	}
	cmd := exec.Command(self, renderArgument)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return rendered, err
	}
	if err := cmd.Start(); err != nil {
		return rendered, err
	}
	err = gob.NewDecoder(out).Decode(&rendered)
	return rendered, errors.Join(err, cmd.Wait())
}

// sentryOptions returns the sentry filter's options for sandbox/oci's flags:
// systrap, no host network, directfs unless it runs in the host's namespaces.
func sentryOptions() ([]sentry.Options, error) {
	constructor, err := platform.Lookup("systrap")
	if err != nil {
		return nil, err
	}
	var options []sentry.Options
	for _, info := range constructor.PrecompiledSeccompInfo() {
		options = append(options, sentry.Options{Platform: info, HostFilesystem: true}, sentry.Options{Platform: info})
	}
	return options, nil
}

// goferOptions returns the gofer filter's options for sandbox/oci's flags. With
// directfs the mounts decide whether it serves one by lisafs.
func goferOptions() []gofer.Options {
	return []gofer.Options{{DirectFS: true}, {DirectFS: true, LisafsNeeded: true}, {}}
}

func renderPrograms() (programs, error) {
	var rendered programs
	options, err := sentryOptions()
	if err != nil {
		return rendered, err
	}
	for _, o := range options {
		program, err := precompileSentry(o)
		if err != nil {
			return rendered, err
		}
		rendered.Sentry = append(rendered.Sentry, program)
	}
	all, err := gofer.PrecompiledPrograms()
	if err != nil {
		return rendered, err
	}
	for _, o := range goferOptions() {
		i := slices.IndexFunc(all, func(p precompiledseccomp.Program) bool { return p.Name == o.ConfigKey() })
		if i < 0 {
			return rendered, fmt.Errorf("gVisor precompiles no gofer filter for %s", o.ConfigKey())
		}
		rendered.Gofer = append(rendered.Gofer, all[i])
	}
	return rendered, nil
}

// precompileSentry renders the filter for one set of options. gVisor's own
// PrecompiledPrograms renders all platforms and devices, which takes a minute,
// and puts its own process ID into systrap's filter.
func precompileSentry(o sentry.Options) (precompiledseccomp.Program, error) {
	var names []string
	for name := range o.Vars() {
		names = append(names, name)
	}
	return precompiledseccomp.Precompile(o.ConfigKey(), names, func(values precompiledseccomp.Values) *seccomp.Program {
		with := o
		with.Platform = variablePlatform{o.Platform, values}
		return sentryProgram(with)
	})
}

// variablePlatform is a platform whose filter has the given values for
// everything known only at a start.
type variablePlatform struct {
	platform.SeccompInfo
	values precompiledseccomp.Values
}

// Variables returns all values. A platform's precede the options' own.
func (p variablePlatform) Variables() precompiledseccomp.Values { return p.values }

// SyscallFilters returns the platform's rules, except for rt_tgsigqueueinfo,
// where systrap uses the process ID itself instead of the variable.
func (p variablePlatform) SyscallFilters(values precompiledseccomp.Values) seccomp.SyscallRules {
	rules := p.SeccompInfo.SyscallFilters(values)
	rules.Remove(unix.SYS_RT_TGSIGQUEUEINFO)
	return rules.Set(unix.SYS_RT_TGSIGQUEUEINFO, seccomp.PerArg{
		seccomp.EqualTo(values.GetUint64("self_pid")),
		seccomp.AnyValue{},
		seccomp.EqualTo(unix.SIGKILL),
	})
}

func sentryProgram(o sentry.Options) *seccomp.Program {
	rules, denied := sentry.Rules(o)
	return program(rules, denied, sentry.SeccompOptions(o))
}

func goferProgram(o gofer.Options) *seccomp.Program {
	rules, denied := gofer.Rules(o)
	return program(rules, denied, seccomp.ProgramOptions{})
}

func program(allowed, denied seccomp.SyscallRules, options seccomp.ProgramOptions) *seccomp.Program {
	return &seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: denied}, {Rules: allowed, Action: seccomp.Allow}},
		Options:  options,
	}
}

// source returns the Go file. Its init calls ListPrecompiled first, which makes
// the map that the programs are added to.
func (p programs) source() string {
	var b strings.Builder
	b.WriteString(`// Code generated by precompile. DO NOT EDIT.

package main

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

func init() {
	sentry.ListPrecompiled()
	gofer.ListPrecompiled()
`)
	for _, program := range p.Sentry {
		b.WriteString(program.Registration("\t", "precompiledseccomp", "sentryPrograms"))
	}
	for _, program := range p.Gofer {
		b.WriteString(program.Registration("\t", "precompiledseccomp", "goferPrograms"))
	}
	b.WriteString("}\n")
	return b.String()
}

// compare compares every program, with this process's values, with what runsc
// would compile in it.
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
