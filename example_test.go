package caisson_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Run a command in a sandbox, with this machine's programs and without network.
func ExampleNewSandbox() {
	ctx := context.Background()
	box, err := caisson.NewSandbox(ctx, caisson.SandboxOptions{Workspace: "."})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = box.Destroy(ctx) }()
	exit, err := sandbox.Run(ctx, box, sandbox.Command{Argv: []string{"ls", "-l"}, Stdout: os.Stdout})
	fmt.Println(exit.Status, err)
}

// Keep the caches of build tools between sandboxes, and show commands another directory.
func ExampleNewSandbox_caches() {
	ctx := context.Background()
	o := caisson.SandboxOptions{Workspace: ".", Caches: []string{"go", "~/.gradle"}}
	o.Mounts = []sandbox.Mount{{Path: "/usr/share", Target: "/data", ReadOnly: true}}
	box, err := caisson.NewSandbox(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = box.Destroy(ctx) }()
	exit, err := sandbox.Run(ctx, box, sandbox.Command{Argv: []string{"ls", "-d", "/data"}, Stdout: os.Stdout})
	fmt.Println(exit.Status, err)
}

// Run an agent on a workspace until its task is done.
func ExampleRun() {
	model, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "gpt-6.2-sol", BaseURL: os.Getenv("OPENAI_BASE_URL"), APIKey: os.Getenv("OPENAI_API_KEY")}, API: openai.Responses})
	if err != nil {
		log.Fatal(err)
	}
	o := caisson.Options{SandboxOptions: caisson.SandboxOptions{Workspace: "."}, Profiles: []loop.Profile{{Model: model}}}
	report, err := caisson.Run(context.Background(), o, "Make the tests pass.")
	fmt.Println(report.Answer, report.Changed, report.Err, err)
}

// Offer a tool of one's own to the agent. It runs in this process.
func ExampleRun_tool() {
	schema := `{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}`
	add := tools.NewFunc(tools.Definition{Name: "add", Description: "Adds two numbers.", Class: tools.ClassNone, InputSchema: []byte(schema)},
		func(_ context.Context, in struct{ A, B int }) (string, error) { return fmt.Sprint(in.A + in.B), nil })
	model, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "gpt-6.2-sol", BaseURL: os.Getenv("OPENAI_BASE_URL"), APIKey: os.Getenv("OPENAI_API_KEY")}, API: openai.Responses})
	if err != nil {
		log.Fatal(err)
	}
	o := caisson.Options{SandboxOptions: caisson.SandboxOptions{Workspace: "."}, Profiles: []loop.Profile{{Model: model}}, Tools: []tools.Factory{add}}
	report, err := caisson.Run(context.Background(), o, "What is 27 + 15?")
	fmt.Println(report.Answer, report.Err, err)
}
