// Command greeter is the program of TestService: "serve ADDRESS" greets who connects,
// and "get ADDRESS" prints the greeting.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(verb, address string) error {
	if verb == "get" {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_, err = io.Copy(os.Stdout, c)
		}
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	fmt.Println("greeter listens")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintf(c, "hello from %d in %s\n", os.Getuid(), dir)
		c.Close()
	}
}
