package tools

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// RegistrationError says everything that keeps a tool from being registered.
type RegistrationError struct {
	// Name is as the definition gives it; "" where there is no definition.
	Name Name
	// Problems each say what is wrong, schema constructs as "path: message".
	Problems []string
	// Err is the cause where there is one, such as a factory's panic.
	Err error
}

// Error lists the problems.
func (e *RegistrationError) Error() string {
	return fmt.Sprintf("register tool %q: %s", string(e.Name), strings.Join(e.Problems, "; "))
}

// Unwrap gives the cause.
func (e *RegistrationError) Unwrap() error { return e.Err }

// registered is one tool that passed registration.
type registered struct {
	def     Definition
	wire    LLMName
	factory Factory
	schema  *inputSchema
}

// registry holds the tools of a session under both forms of their names.
type registry struct {
	mu     sync.RWMutex
	byName map[Name]*registered
	byWire map[LLMName]*registered
}

func (r *registry) add(f Factory) error {
	def, err := inspect(f)
	if err != nil {
		return err
	}
	name, err := ParseName(string(def.Name))
	if err != nil {
		return &RegistrationError{Name: def.Name, Problems: []string{err.Error()}, Err: err}
	}
	schema, problems := compileSchema(def)
	problems = append(checkDefinition(def), problems...)
	if len(problems) > 0 {
		return &RegistrationError{Name: def.Name, Problems: problems}
	}
	wire, _ := name.LLM() // ParseName has checked it
	return r.insert(&registered{def: def, wire: wire, factory: f, schema: schema})
}

// Inspect gives a factory's definition as registration would keep it, defaults
// filled in. Its error is a [*RegistrationError].
func Inspect(f Factory) (Definition, error) { return inspect(f) }

// CheckFactory says what would keep a tool from being registered in a session
// that has no tool of its name: a [*RegistrationError], or nil.
func CheckFactory(f Factory) error { return new(registry).add(f) }

func (r *registry) insert(t *registered) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.byWire[t.wire]; other != nil {
		problem := fmt.Sprintf("wire name %q is taken by tool %q", t.wire, other.def.Name)
		return &RegistrationError{Name: t.def.Name, Problems: []string{problem}}
	}
	if r.byName == nil {
		r.byName, r.byWire = map[Name]*registered{}, map[LLMName]*registered{}
	}
	r.byName[t.def.Name], r.byWire[t.wire] = t, t
	return nil
}

// find looks a name up as the canonical form, then as the wire form.
func (r *registry) find(name string) (*registered, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.named(name)
	return t, t != nil
}

// named is find for who holds mu.
func (r *registry) named(name string) *registered {
	if t, ok := r.byName[Name(name)]; ok {
		return t
	}
	return r.byWire[LLMName(name)]
}

func (r *registry) remove(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.named(name)
	if t == nil {
		return false
	}
	delete(r.byName, t.def.Name)
	delete(r.byWire, t.wire)
	return true
}

// all gives the tools sorted by canonical name.
func (r *registry) all() []*registered {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*registered, 0, len(r.byName))
	for _, t := range r.byName {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *registered) int { return strings.Compare(string(a.def.Name), string(b.def.Name)) })
	return list
}

// inspect calls a factory twice, verifies that it gives two objects, and asks
// one for its definition, with the zero fields that have a default filled in.
func inspect(f Factory) (def Definition, err error) {
	defer func() {
		if p := recover(); p != nil {
			cause := fmt.Errorf("panic: %v", p)
			err = &RegistrationError{Name: def.Name, Problems: []string{"factory or definition panics"}, Err: cause}
		}
	}()
	if f == nil {
		return def, &RegistrationError{Problems: []string{"factory is nil"}}
	}
	first, second := f(), f()
	if first == nil || second == nil {
		return def, &RegistrationError{Problems: []string{"factory gives nil"}}
	}
	def = first.Definition()
	if sameObject(first, second) {
		return def, &RegistrationError{
			Name:     def.Name,
			Problems: []string{"factory gives the same object twice; every call needs one of its own"},
			Err:      errSingleton,
		}
	}
	if def.Timeout == 0 {
		def.Timeout = classTimeout(def.Class)
	}
	if def.ResultBytes == 0 {
		def.ResultBytes = DefaultResultBytes
	}
	return def, nil
}

var errSingleton = errors.New("factory gives a singleton")

// sameObject says whether two tools share their state. Pointers to types
// without fields may be equal and share nothing; values are copies.
func sameObject(a, b Tool) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if va.Type() != vb.Type() {
		return false
	}
	switch va.Kind() {
	case reflect.Pointer:
		return va.Type().Elem().Size() > 0 && va.Pointer() == vb.Pointer()
	case reflect.Map, reflect.Chan, reflect.Func, reflect.Slice:
		return va.Pointer() == vb.Pointer()
	}
	return false
}

// classTimeout returns the default timeout of a class (docs/specification.md §4):
// 600 s for execute and network, else 60 s.
func classTimeout(c Class) time.Duration {
	if c == ClassExecute || c == ClassNetwork {
		return 600 * time.Second
	}
	return 60 * time.Second
}

func checkDefinition(def Definition) []string {
	var problems []string
	add := func(bad bool, problem string) {
		if bad {
			problems = append(problems, problem)
		}
	}
	add(def.Description == "", "description is missing")
	add(!def.Class.valid(), fmt.Sprintf("class is %q, must be none, read, write, execute or network", def.Class))
	add(!def.Runs.valid(), fmt.Sprintf("place is %q, must be host, sandbox or state", def.Runs))
	add(def.Runs == PlaceHost && (def.Class == ClassWrite || def.Class == ClassExecute),
		"what writes files or executes code must run in the sandbox")
	add(def.Runs == PlaceState && (def.Class != ClassWrite || def.Paths != nil || !slices.Contains(stateTools(), def.Name)),
		"only the memory tools keep state on the host, and they name no path of a workspace")
	add(def.Parallel && def.Class != ClassExecute, "only an execute tool can be parallel")
	add(def.Timeout < 0, "timeout is negative")
	add(def.ResultBytes < 0, "result bound is negative")
	return problems
}
