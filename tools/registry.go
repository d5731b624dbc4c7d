package tools

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// RegistrationError lists everything that keeps a tool from being registered.
type RegistrationError struct {
	// Name is the definition's, "" if unknown.
	Name Name
	// For schemas, each is "path: message".
	Problems []string
	// Err is the cause, such as a factory's panic, or nil.
	Err error
}

func (e *RegistrationError) Error() string {
	return fmt.Sprintf("register tool %q: %s", string(e.Name), strings.Join(e.Problems, "; "))
}

func (e *RegistrationError) Unwrap() error { return e.Err }

// RegisteredTool is a tool that passed registration.
type RegisteredTool struct {
	// Definition has its defaults filled in. A full schema is rewritten to what
	// providers accept.
	Definition Definition
	// Wire is the name that models see.
	Wire    LLMName
	factory Factory
	schema  *inputSchema
	removed chan struct{}
}

// New returns a fresh instance of the tool, for one call.
func (t *RegisteredTool) New() Tool { return t.factory() }

// Removed returns a channel that is closed when the tool is unregistered.
func (t *RegisteredTool) Removed() <-chan struct{} { return t.removed }

// AcceptInput returns a model's input as canonical JSON with aliases rewritten, or
// every problem it has.
func (t *RegisteredTool) AcceptInput(input []byte) (canonical []byte, problems []string) {
	return t.schema.acceptInput(input)
}

// Registry holds tools under both forms of their names. It is safe for concurrent
// use. The zero value is empty.
type Registry struct {
	mu     sync.RWMutex
	byName map[Name]*RegisteredTool
	byWire map[LLMName]*RegisteredTool
}

// Register adds a tool. Its error is a [*RegistrationError].
func (r *Registry) Register(f Factory) error {
	def, err := Inspect(f)
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
	def.InputSchema = schema.offered
	wire, _ := name.LLM() // ParseName has checked it
	return r.insertTool(&RegisteredTool{Definition: def, Wire: wire, factory: f, schema: schema, removed: make(chan struct{})})
}

// CheckFactory reports what would keep a tool from being registered in an empty
// [Registry]: a [*RegistrationError], or nil.
func CheckFactory(f Factory) error { return new(Registry).Register(f) }

func (r *Registry) insertTool(t *RegisteredTool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.byWire[t.Wire]; other != nil {
		problem := fmt.Sprintf("wire name %q is taken by tool %q", t.Wire, other.Definition.Name)
		return &RegistrationError{Name: t.Definition.Name, Problems: []string{problem}}
	}
	if r.byName == nil {
		r.byName, r.byWire = map[Name]*RegisteredTool{}, map[LLMName]*RegisteredTool{}
	}
	r.byName[t.Definition.Name], r.byWire[t.Wire] = t, t
	return nil
}

// Find looks a tool up by its canonical name, then by its wire form.
func (r *Registry) Find(name string) (*RegisteredTool, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t := r.findLocked(name)
	return t, t != nil
}

func (r *Registry) findLocked(name string) *RegisteredTool {
	if t, ok := r.byName[Name(name)]; ok {
		return t
	}
	return r.byWire[LLMName(name)]
}

// Unregister removes a tool by either form of its name. It reports whether the tool
// was registered.
func (r *Registry) Unregister(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.findLocked(name)
	if t == nil {
		return false
	}
	delete(r.byName, t.Definition.Name)
	delete(r.byWire, t.Wire)
	close(t.removed)
	return true
}

// All returns the tools, sorted by canonical name.
func (r *Registry) All() []*RegisteredTool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedFunc(maps.Values(r.byName), func(a, b *RegisteredTool) int {
		return cmp.Compare(a.Definition.Name, b.Definition.Name)
	})
}

// Inspect calls a factory twice, checks that it makes two objects, and returns
// their definition with defaults filled in. Its error is a [*RegistrationError].
func Inspect(f Factory) (def Definition, err error) {
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
	if def.Hash == "" && def.Name.Server() != "" {
		def.Hash = hashDefinition(def)
	}
	return def, nil
}

// hashDefinition returns the hex SHA-256 of what models are told about a tool.
func hashDefinition(def Definition) string {
	var schema any = string(def.InputSchema)
	if doc, err := strictjson.Decode(def.InputSchema, maxSchemaBytes, maxSchemaDepth); err == nil {
		schema = doc
	}
	text, _ := strictjson.Canonical([]any{def.Name, def.Description, schema}) // it is JSON
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

var errSingleton = errors.New("factory gives a singleton")

// sameObject reports whether two tools share state. Pointers to types without
// fields may be equal but share nothing; values are copies.
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

// classTimeout returns a class's default timeout (docs/internal/specification.md
// §4).
func classTimeout(c Class) time.Duration {
	if c == ClassExecute || c == ClassNetwork {
		return 600 * time.Second
	}
	return 60 * time.Second
}

func isHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

func checkDefinition(def Definition) []string {
	var problems []string
	add := func(bad bool, problem string) {
		if bad {
			problems = append(problems, problem)
		}
	}
	add(def.Description == "", "description is missing")
	add(!def.Class.Valid(), fmt.Sprintf("class is %q, must be none, read, write, execute or network", def.Class))
	add(!def.Runs.isValid(), fmt.Sprintf("place is %q, must be host, sandbox or state", def.Runs))
	add(def.Runs == PlaceHost && (def.Class == ClassWrite || def.Class == ClassExecute),
		"what writes files or executes code must run in the sandbox")
	add(def.Runs == PlaceState && (def.Class != ClassWrite || def.Paths != nil || !slices.Contains(stateTools(), def.Name)),
		"only the memory tools keep state on the host, and they name no path of a workspace")
	add(def.Parallel && def.Class != ClassExecute, "only an execute tool can be parallel")
	server := def.Name.Server() != ""
	add(def.FullSchema && !server, "only a tool of a server can have a schema outside of the subset")
	add(server && !isHash(def.Hash) || !server && def.Hash != "", "hash must be a hex SHA-256 for a tool of a server, and empty for others")
	add(def.Timeout < 0, "timeout is negative")
	add(def.ResultBytes < 0, "result bound is negative")
	return problems
}
