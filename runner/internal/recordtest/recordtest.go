// Package recordtest checks records against their published schema, for tests.
package recordtest

import (
	"bytes"
	"strings"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a compiled JSON schema.
type Schema struct{ schema *validator.Schema }

// Compile compiles the text of a schema.
func Compile(text []byte) (*Schema, error) {
	doc, err := validator.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := validator.NewCompiler()
	if err := c.AddResource("record.schema.json", doc); err != nil {
		return nil, err
	}
	schema, err := c.Compile("record.schema.json")
	if err != nil {
		return nil, err
	}
	return &Schema{schema}, nil
}

// Validate reports how a JSON text violates the schema.
func (s *Schema) Validate(text string) error {
	doc, err := validator.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return s.schema.Validate(doc)
}
