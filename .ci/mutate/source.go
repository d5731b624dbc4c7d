//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An edit is a change of a source file's text at an offset. Each mutant is made
// of edits that keep the line of everything else.
type edit struct {
	mutant *mutant
	kind   editKind
	offset int
	// span is the length of the node that the edit opens or closes, and order
	// the edit's place among those with the same span.
	span, order int
	// text is inserted; drop bytes are left out.
	text string
	drop int
}

type editKind int

const (
	closing editKind = iota
	opening
	replacing
)

// wrap adds the edits that put before and after around source[from:to].
func (f *sourceFile) wrap(m *mutant, from, to int, before, after string) {
	n := len(f.edits)
	f.edits = append(f.edits,
		edit{mutant: m, kind: opening, offset: from, span: to - from, order: n, text: before},
		edit{mutant: m, kind: closing, offset: to, span: to - from, order: n, text: after})
}

// replace adds the edit that writes text in place of source[from:to].
func (f *sourceFile) replace(m *mutant, from, to int, text string) {
	f.edits = append(f.edits, edit{mutant: m, kind: replacing, offset: from, text: text, drop: to - from})
}

// render returns the file with the edits of the mutants that are not dropped,
// and sets where in it each mutant begins and ends.
func (f *sourceFile) render() []byte {
	edits := slices.DeleteFunc(slices.Clone(f.edits), func(e edit) bool { return e.mutant.dropped })
	slices.SortStableFunc(edits, compareEdits)
	for _, e := range edits {
		e.mutant.begin, e.mutant.end = -1, -1
	}
	var out strings.Builder
	at := 0
	for _, e := range edits {
		out.Write(f.text[at:e.offset])
		if e.mutant.begin < 0 {
			e.mutant.begin = out.Len()
		}
		text := e.text
		if strings.Contains(text, "%d") {
			text = fmt.Sprintf(text, e.mutant.ID)
		}
		out.WriteString(text)
		e.mutant.end = out.Len()
		at = e.offset + e.drop
	}
	out.Write(f.text[at:])
	return []byte(out.String())
}

// compareEdits orders edits so that nodes nest: at one offset what ends there
// is closed first, the inner before the outer, and the outer is opened first.
func compareEdits(a, b edit) int {
	if c := cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.kind, b.kind)); c != 0 {
		return c
	}
	if a.kind == closing {
		return cmp.Or(cmp.Compare(a.span, b.span), cmp.Compare(b.order, a.order))
	}
	return cmp.Or(cmp.Compare(b.span, a.span), cmp.Compare(a.order, b.order))
}

// runtimeSource returns the file that is added to the package under test. It
// reads which mutant is switched on, and where to write which ones are reached,
// from the environment, or from the NIS domain name of the UTS namespace where
// a test starts its program without an environment and in a root of its own.
func runtimeSource(pkg string, last int) string {
	return fmt.Sprintf(runtimeText, pkg, last+1, switchVariable, traceVariable, domainPrefix, containerTrace)
}

const (
	switchVariable = "MUTANT"
	traceVariable  = "MUTANT_TRACE"
	domainPrefix   = "mutant-"
	// containerTrace is where a test can mount the trace for a program that it
	// starts in a root of its own.
	containerTrace = "/.mutants"
)

const runtimeText = `package %s

import (
	mutantos "os"
	mutantstrconv "strconv"
	mutantstrings "strings"
	mutantatomic "sync/atomic"
	mutantsyscall "syscall"
)

var (
	mutantActive, mutantTrace = mutantInit()
	mutantReached             [%d]mutantatomic.Bool
)

func mutantInit() (int, *mutantos.File) {
	active, path := mutantos.Getenv("%s"), mutantos.Getenv("%s")
	var name mutantsyscall.Utsname
	if active == "" && path == "" && mutantsyscall.Uname(&name) == nil {
		var domain []byte
		for _, c := range name.Domainname {
			if c != 0 {
				domain = append(domain, byte(c))
			}
		}
		active, _ = mutantstrings.CutPrefix(string(domain), "%s")
		if active == "trace" {
			path = "%s"
		}
	}
	id, _ := mutantstrconv.Atoi(active)
	if path == "" {
		return id, nil
	}
	f, _ := mutantos.OpenFile(path, mutantos.O_WRONLY|mutantos.O_APPEND, 0)
	return id, f
}

func mutantOn(id int) bool {
	if mutantTrace != nil && !mutantReached[id].Swap(true) {
		_, _ = mutantTrace.WriteString(mutantstrconv.Itoa(id) + "\n")
	}
	return id == mutantActive
}

func mutantNot[T ~bool](id int, v T) T { return v != T(mutantOn(id)) }

func mutantErr(id int, err error) error {
	if mutantOn(id) {
		return nil
	}
	return err
}

type mutantInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type mutantNumber interface {
	mutantInteger | ~float32 | ~float64
}

func mutantInc[T mutantNumber](id int, v T) T {
	if mutantOn(id) {
		return v + 1
	}
	return v
}

func mutantNeg[T mutantNumber](id int, v T) T {
	if mutantOn(id) {
		return -v
	}
	return v
}

func mutantLess[T mutantNumber | ~string](id int, a, b T) bool {
	return a < b || a == b && mutantOn(id)
}

func mutantLessEqual[T mutantNumber | ~string](id int, a, b T) bool {
	return a < b || a == b && !mutantOn(id)
}

func mutantGreater[T mutantNumber | ~string](id int, a, b T) bool {
	return a > b || a == b && mutantOn(id)
}

func mutantGreaterEqual[T mutantNumber | ~string](id int, a, b T) bool {
	return a > b || a == b && !mutantOn(id)
}

func mutantAdd[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a - b
	}
	return a + b
}

func mutantSubtract[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a + b
	}
	return a - b
}

func mutantMultiply[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a / b
	}
	return a * b
}

func mutantDivide[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a * b
	}
	return a / b
}

func mutantRemainder[T mutantInteger](id int, a, b T) T {
	if mutantOn(id) {
		return a * b
	}
	return a %% b
}
`
