#!/bin/bash
source ./sourced.good.env
srun ./train
