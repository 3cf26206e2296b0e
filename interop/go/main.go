// Lock clients of the Go world, driven line by line.
//
// Arguments: `etcd ENDPOINT[,ENDPOINT]... [OPTION=VALUE]...` or `redlock HOST:PORT[,HOST:PORT]...`.
// It prints `AT 0 - ready` once connected.
//
// Input: `NUMBER LABEL VERB ARGUMENT...`. Each label carries out its commands one after the other.
// The verb `interrupt` cancels those that are not done.
//
// Output: `AT NUMBER LABEL WORD...`, one line a command when it is done, `error ...` if it failed;
// AT is nanoseconds of the machine's monotonic clock. The end of the input ends the process at
// once, without unlocking anything.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A client answers the commands of one label.
type client interface {
	run(ctx context.Context, verb string, args []string) (string, error)
}

type command struct {
	ctx          context.Context
	number, verb string
	args         []string
}

type worker struct {
	label    string
	commands chan command
	// Of all commands so far: to cancel one that is done does nothing.
	cancels []context.CancelFunc
}

var printing sync.Mutex

func say(number, label, text string) {
	printing.Lock()
	defer printing.Unlock()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	text = strings.ReplaceAll(text, "\n", " ")
	fmt.Printf("%d %s %s %s\n", now.Nano(), number, label, text)
}

func (w *worker) work(c client) {
	for command := range w.commands {
		answer, err := c.run(command.ctx, command.verb, command.args)
		if err != nil {
			answer = "error " + err.Error()
		}
		say(command.number, w.label, answer)
	}
}

func main() {
	options := map[string]string{}
	for _, arg := range os.Args[3:] {
		name, value, _ := strings.Cut(arg, "=")
		options[name] = value
	}
	addresses := strings.Split(os.Args[2], ",")
	var connect func(label string) (client, error)
	switch os.Args[1] {
	case "etcd":
		connect = etcdClients(addresses, options)
	case "redlock":
		connect = redlockClients(addresses)
	default:
		panic(os.Args[1])
	}
	say("0", "-", "ready")
	workers := map[string]*worker{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		number, label, verb := words[0], words[1], words[2]
		w := workers[label]
		if w == nil {
			c, err := connect(label)
			if err != nil {
				say(number, label, "error "+err.Error())
				continue
			}
			w = &worker{label: label, commands: make(chan command, 64)}
			go w.work(c)
			workers[label] = w
		}
		if verb == "interrupt" {
			for _, cancel := range w.cancels {
				cancel()
			}
			say(number, label, "ok")
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.cancels = append(w.cancels, cancel)
		w.commands <- command{ctx, number, verb, words[3:]}
	}
}

// The number at this place of the arguments, or 0.
func number(args []string, index int) (int64, error) {
	if index >= len(args) {
		return 0, nil
	}
	return strconv.ParseInt(args[index], 10, 64)
}

// A context that ends after the milliseconds at this place, if there are any.
func within(ctx context.Context, args []string, index int) (context.Context, context.CancelFunc, error) {
	wait, err := number(args, index)
	if err != nil || wait == 0 {
		return ctx, func() {}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Millisecond)
	return ctx, cancel, nil
}
