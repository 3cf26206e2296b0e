package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// One label of redsync, over independent servers.
//
// Verbs: `lock NAME TERM [TRIES]`, `trylock NAME TERM`, `unlock NAME`, `extend NAME`, `value NAME`, and
// `contend NAME TERM CONTENDERS SPAN HOLD`, all in milliseconds: how often they get it in that span.
type redlockLabel struct {
	redsync *redsync.Redsync
	mutexes map[string]*redsync.Mutex
}

func redlockClients(addresses []string) func(string) (client, error) {
	var pools []redsyncredis.Pool
	for _, address := range addresses {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: address})))
	}
	locks := redsync.New(pools...)
	return func(string) (client, error) {
		return &redlockLabel{redsync: locks, mutexes: map[string]*redsync.Mutex{}}, nil
	}
}

func (l *redlockLabel) run(ctx context.Context, verb string, args []string) (string, error) {
	if len(args) == 0 {
		return "", errors.New(verb + " needs a name")
	}
	name := args[0]
	if verb == "lock" || verb == "trylock" {
		return l.lock(ctx, verb == "trylock", args)
	}
	if verb == "contend" {
		return l.contend(ctx, args)
	}
	mutex := l.mutexes[name]
	if mutex == nil {
		return "", errors.New("never locked: " + name)
	}
	switch verb {
	case "unlock":
		ok, err := mutex.UnlockContext(ctx)
		return fmt.Sprintf("unlocked %t", ok), err
	case "extend":
		ok, err := mutex.ExtendContext(ctx)
		return fmt.Sprintf("extended %t", ok), err
	case "value":
		return "value " + mutex.Value(), nil
	default:
		return "", errors.New("unknown: " + verb)
	}
}

func (l *redlockLabel) lock(ctx context.Context, try bool, args []string) (string, error) {
	term, err := number(args, 1)
	if err != nil {
		return "", err
	}
	options := []redsync.Option{redsync.WithExpiry(time.Duration(term) * time.Millisecond)}
	tries, err := number(args, 2)
	if err != nil {
		return "", err
	}
	if tries > 0 {
		options = append(options, redsync.WithTries(int(tries)))
	}
	mutex := l.redsync.NewMutex(args[0], options...)
	l.mutexes[args[0]] = mutex
	if try {
		err = mutex.TryLockContext(ctx)
	} else {
		err = mutex.LockContext(ctx)
	}
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return "refused", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("locked %s %d", mutex.Value(), time.Until(mutex.Until()).Milliseconds()), nil
}

func (l *redlockLabel) contend(ctx context.Context, args []string) (string, error) {
	var numbers [4]int64
	for at := range numbers {
		found, err := number(args, at+1)
		if err != nil {
			return "", err
		}
		numbers[at] = found
	}
	term, span, hold := milliseconds(numbers[0]), milliseconds(numbers[2]), milliseconds(numbers[3])
	var turns atomic.Int64
	var running sync.WaitGroup
	started := time.Now()
	for range numbers[1] {
		running.Add(1)
		go func() {
			defer running.Done()
			for time.Since(started) < span {
				mutex := l.redsync.NewMutex(args[0], redsync.WithExpiry(term))
				if mutex.LockContext(ctx) != nil {
					continue
				}
				time.Sleep(hold)
				if time.Since(started) < span {
					turns.Add(1)
				}
				_, _ = mutex.UnlockContext(ctx)
			}
		}()
	}
	running.Wait()
	return fmt.Sprintf("turns %d in %d", turns.Load(), span.Nanoseconds()), nil
}

func milliseconds(count int64) time.Duration { return time.Duration(count) * time.Millisecond }
